"""Checkpoints without pickle: a JSON tree whose tensors live in content-addressed safetensors files.

A model that did not change since the last checkpoint has the same address and is not written again, however many
references the state and the clients' memories hold to it. Everything read back is checked against its hash; a damaged
snapshot is passed over for the one before it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fnll.federation import Kept, Snapshot, Totals
from fnll.harness.integrity import SNAPSHOTS, Written, blob, in_words, records_of, snapshot_body
from fnll.system.files import own_folder, refuse_link, remove_file, remove_leftovers, write_atomic
from fnll.system.foreign import digest
from fnll.types import State

log = logging.getLogger(__name__)

OWN_FILE = 1 << 16  # bytes from which a state gets a file of its own; smaller tensors share one
DAMAGE = (  # what reading a damaged or forged snapshot may raise
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    RuntimeError,
    safetensors.SafetensorError,
)
KEEP = 2  # snapshots kept: the newest, and one to fall back to


class Restored(NamedTuple):
    """A snapshot, and lengths and hashes of the append-only files when it was taken."""

    snapshot: Snapshot
    records: dict[str, Written]
    notes: dict[str, Any]  # what the observer sums up over rounds


class Checkpoints:
    """The checkpoint folder of one run."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.folder, self.blobs, self.run_id = folder, folder / "blobs", run_id
        self._known: dict[int, tuple[object, str]] = {}  # id of an object already written -> (the object, its address)

    def save(self, snapshot: Snapshot, records: Mapping[str, Written], notes: Mapping[str, Any] | None = None) -> None:
        """Write `snapshot`; afterwards older ones and the files only they refer to are removed."""
        for folder in (self.folder, self.blobs):
            own_folder(folder)
        writer = _Writer(self.blobs, self._known)
        body = {
            "run_id": self.run_id,
            "t": snapshot.t,
            "totals": list(snapshot.totals),
            "records": {name: list(written) for name, written in records.items()},
            "state": writer.encode(snapshot.state),
            "clients": [[k, writer.encode(kept)] for k, kept in snapshot.clients.items()],
        }
        if notes:
            body["notes"] = [[name, writer.encode(value)] for name, value in notes.items()]
        body["loose"] = writer.flush()
        body["files"] = sorted(writer.files)
        self._known = writer.known
        text = json.dumps(body, allow_nan=False)
        name = f"snapshot-{snapshot.t:08d}.json"
        write_atomic(self.folder / name, json.dumps({"checksum": digest(text.encode()), "body": text}))
        self._prune()

    def load(self, objection: Callable[[Restored], str | None] = lambda _: None) -> Restored | None:
        """The newest snapshot that is whole, or None; `objection` says why one that is whole does not fit the run."""
        for folder in (self.folder, self.blobs):  # now, not when the first rounds are trained and shall be saved
            refuse_link(folder)
        for path in self._snapshots():
            try:
                restored = self._read(path)
                if reason := objection(restored):
                    log.warning("checkpoint %s does not fit the run (%s); trying an older one", path.name, reason)
                    continue
                return restored
            except DAMAGE as error:
                log.warning("checkpoint %s is damaged (%s); trying an older one", path.name, in_words(error))
        return None

    def _snapshots(self) -> list[Path]:
        return sorted(self.folder.glob(SNAPSHOTS), reverse=True)

    def _body(self, path: Path) -> dict[str, Any]:
        body = snapshot_body(path)
        if body["run_id"] != self.run_id:
            raise ValueError(f"it belongs to run {body['run_id']}")
        return body

    def _read(self, path: Path) -> Restored:
        body = self._body(path)
        reader = _Reader(self.blobs, body["loose"])
        state = reader.decode(body["state"])
        clients = {int(k): reader.decode(kept) for k, kept in body["clients"]}
        if not isinstance(state, State) or not all(isinstance(kept, Kept) for kept in clients.values()):
            raise ValueError("it holds no state")
        t, *totals = (_whole(number) for number in (body["t"], *body["totals"]))
        if len(totals) != len(Totals._fields):
            raise ValueError("it counts something else")
        notes = {name: reader.decode(value) for name, value in body.get("notes", [])}
        return Restored(Snapshot(t, state, clients, Totals(*totals)), records_of(body), notes)

    def _prune(self) -> None:
        remove_leftovers(self.folder)
        snapshots = self._snapshots()
        for path in snapshots[KEEP:]:
            remove_file(path)
        wanted: set[str] = set()
        for path in snapshots[:KEEP]:
            try:
                wanted.update(self._body(path)["files"])
            except DAMAGE:
                continue
        for path in self.blobs.iterdir():
            if path.name not in wanted:
                remove_file(path)


class _Writer:
    """Turns values into JSON, and tensors into files."""

    def __init__(self, blobs: Path, known: Mapping[int, tuple[object, str]]) -> None:
        self.blobs, self.before = blobs, known
        self.known: dict[int, tuple[object, str]] = {}
        self.files: set[str] = set()
        self.loose: dict[str, Tensor] = {}

    def encode(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$": "float", "value": repr(value)}
        if isinstance(value, np.generic):
            return self.encode(value.item())
        if isinstance(value, Tensor):
            return {"$": "tensor", **self._store(value, {"": value})}
        if isinstance(value, np.ndarray):
            return {"$": "array", **self._store(value, {"": torch.from_numpy(np.ascontiguousarray(value))})}
        if isinstance(value, Mapping):
            if value and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()):
                return {"$": "weights", "names": list(value), **self._store(value, value)}
            return {"$": "dict", "items": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        if isinstance(value, (list, tuple, set, frozenset)):
            kind = type(value).__name__ if type(value) in (list, tuple, set, frozenset) else "tuple"
            items = sorted(value) if isinstance(value, (set, frozenset)) else value
            return {"$": kind, "items": [self.encode(item) for item in items]}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: self.encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {"$": "record", "type": _name(type(value)), "fields": fields}
        raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}; see fnll.types.State for what it can")

    def _store(self, owner: object, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        if sum(t.numel() * t.element_size() for t in tensors.values()) < OWN_FILE:
            start = len(self.loose)
            self.loose.update({str(start + i): _own(t) for i, t in enumerate(tensors.values())})
            return {"at": start}
        if id(owner) in self.before and self.before[id(owner)][0] is owner:
            address = self.before[id(owner)][1]
        else:
            address = self._write({str(i): _own(t) for i, t in enumerate(tensors.values())})
        self.known[id(owner)] = (owner, address)
        self.files.add(address)
        return {"file": address}

    def _write(self, tensors: dict[str, Tensor]) -> str:
        content = safetensors.torch.save(tensors)
        address = f"{digest(content)}.safetensors"
        if not (self.blobs / address).exists():
            write_atomic(self.blobs / address, content)
        return address

    def flush(self) -> str | None:
        """Write the small tensors as one file and return its address."""
        if not self.loose:
            return None
        address = self._write(self.loose)
        self.files.add(address)
        return address


class _Reader:
    """The inverse of `_Writer`; equal addresses give the same object, so what was shared is shared again."""

    def __init__(self, blobs: Path, loose: str | None) -> None:
        self.blobs = blobs
        self.loaded: dict[str, dict[str, Tensor]] = {}
        self.loose = self._load(loose) if loose else {}

    def decode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kind = value["$"]
        if kind == "float":
            return float(value["value"])
        if kind == "tensor":
            return self._tensors(value, 1)[0]
        if kind == "array":
            return self._tensors(value, 1)[0].numpy()
        if kind == "weights":
            return dict(zip(value["names"], self._tensors(value, len(value["names"])), strict=True))
        if kind == "dict":
            return {self.decode(k): self.decode(v) for k, v in value["items"]}
        if kind == "record":
            return _record(value["type"])(**{name: self.decode(v) for name, v in value["fields"].items()})
        return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](
            self.decode(item) for item in value["items"]
        )

    def _tensors(self, value: dict[str, Any], count: int) -> list[Tensor]:
        if "file" in value:
            stored = self._load(value["file"])
            return [stored[str(i)] for i in range(count)]
        return [self.loose[str(value["at"] + i)] for i in range(count)]

    def _load(self, address: str) -> dict[str, Tensor]:
        if address not in self.loaded:
            content = blob(self.blobs, address)
            self.loaded[address] = safetensors.torch.load(content)
        return self.loaded[address]


def _name(cls: type) -> str:
    """What a record's class is called: one of ours by its name alone, since our modules move.

    A plugin's has its module in front, since two plugins may use one name. Nothing is lost by that: a plugin's target
    and source are part of the run id, so a plugin that was moved starts another run.
    """
    ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
    return cls.__qualname__ if ours else f"{cls.__module__}:{cls.__qualname__}"


def _record(name: str) -> type:
    """The class a record names. Only states of modules that are imported already: loading runs no foreign code."""
    records: list[type] = [Kept, *_states(State)]
    alike = [cls for cls in records if _name(cls) == name and cls.__module__ in sys.modules]
    found = {cls.__module__: cls for cls in alike}  # of one that a notebook defined twice, the last
    if len(found) != 1:
        raise ValueError(f"it names {name}, which is {'the name of several states' if found else 'not a state'}")
    return next(iter(found.values()))


def _states(base: type[State]) -> Iterator[type[State]]:
    """`base` and everything derived from it, in the order of definition."""
    yield base
    for derived in base.__subclasses__():
        yield from _states(derived)


def _own(tensor: Tensor) -> Tensor:
    """A contiguous CPU tensor with storage of its own, as safetensors wants."""
    return tensor.detach().cpu().contiguous().clone()


def _whole(number: object) -> int:
    """A count, which must be one: a forged checkpoint may say anything."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{number!r} is no count")
    return number
