"""A run's folder: what it is called, what it holds, and how far it has come.

`metrics.jsonl` and `diagnostics.jsonl` only grow; a checkpoint notes their lengths and hashes, and a resumed run first
cuts them back to those, so that an interrupted run ends with the very file of an uninterrupted one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from omegaconf import OmegaConf

from fnll.errors import UserError
from fnll.harness.integrity import (
    CONFIG,
    FORMAT,
    MANIFEST,
    METRICS,
    NOTHING,
    RECORDS,
    Condition,
    Written,
    disagreement,
    examine,
    format_of,
    in_words,
    seal,
)
from fnll.harness.metrics import SCORES, TOP5, best, last, last10
from fnll.harness.plain import plain
from fnll.harness.status import MARKS, SUMMARY, Status, marks, status_in
from fnll.system.files import (
    cut_back,
    open_own,
    own_folder,
    remove_file,
    remove_leftovers,
    write_atomic,
    write_json,
)
from fnll.system.foreign import json_object

RENAMED = {"round": "step", "time/round_s": "time/step_s"}  # keys of 0.1
HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)  # what a system answers where another process has the lock


class BusyError(UserError):
    """Another process is at work on this very run."""


class StoreError(UserError):
    """The run folder cannot be written: no run of this store can go on."""


class DamagedError(UserError):
    """The folder of a finished run does not hold what the run wrote."""


class DeclinedError(UserError):
    """The method says that it is not made for this scenario, or cannot be itself within this budget."""


class FormatError(UserError):
    """The run was begun in another format of run folders: it is whole, but cannot be resumed."""


class RunFolder:
    """`<runs_dir>/<run_id>/`, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._running = {name: hashlib.blake2b(digest_size=16) for name in RECORDS}  # hashes of the growing files
        self._lengths = dict.fromkeys(RECORDS, 0)

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def finished(self) -> bool:
        return status_in(self.path) is Status.FINISHED

    def summary(self) -> dict[str, Any]:
        """What a finished run came to, if its folder still says what it wrote."""
        try:
            summary = json_object(self.path / SUMMARY)
        except (OSError, ValueError) as error:
            raise DamagedError(
                f"{self.path / SUMMARY} cannot be read ({in_words(error)}); delete it and type the command again to "
                "have it written anew"
            ) from None
        finding = examine(self.path)
        if finding.state is Condition.DAMAGED:
            raise DamagedError(
                f"run {self.run_id} is finished, but its folder was changed since: {finding.reason}. Put back what was "
                f"there, or delete {self.path / SUMMARY} and type the command again: what is whole is kept, the rest "
                "is computed anew"
            )
        return summary

    def open(self) -> None:
        """Make the folder and take its lock, which the system releases however this process ends."""
        try:
            own_folder(self.path)
            self._lock = open_own(self.path / "lock", "a")
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.path}: {error.strerror or error}; choose another folder with runs_dir=DIR"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno in HELD:
                raise BusyError(f"run {self.run_id} is being computed by another process; wait for it to end") from None
            raise StoreError(
                f"cannot lock {self.path / 'lock'}: {error.strerror or error}. Without locks two processes could write "
                "one run; choose a folder on another file system with runs_dir=DIR"
            ) from None
        remove_leftovers(self.path)

    def require_resumable(self) -> None:
        """Refuse to go on with what was computed in another format; a folder without results may start anew."""
        if not any((self.path / name).exists() for name in (METRICS, "checkpoint")):
            return
        try:
            found = format_of(json_object(self.path / MANIFEST))
        except (OSError, ValueError):
            return  # damaged: what there is to resume from is checked by itself
        if found != FORMAT:
            version = "an older" if found < FORMAT else "a newer"
            raise FormatError(
                f"run {self.run_id} was begun by {version} fnll (its folder has format {found}, here it is {FORMAT}): "
                "reports read it, but it cannot be resumed; finish it with that version, or "
                f"delete {self.path} and type the command again to start over"
            )

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def describe(self, config: Mapping[str, Any], command: str, facts: Mapping[str, Any]) -> None:
        """Write what the run is: its resolved settings with the names of the choices, and the facts around them."""
        write_atomic(self.path / CONFIG, OmegaConf.to_yaml(OmegaConf.create(dict(config))))
        manifest = {"format": FORMAT, "run_id": self.run_id, "command": command, **facts}
        write_json(self.path / MANIFEST, plain(manifest))

    def mark(self, status: Status, facts: Mapping[str, Any]) -> None:
        """Write down what this attempt came to, if it did not come to an end; `status` is one of `MARKS`."""
        write_json(self.path / MARKS[status], plain(dict(facts)))

    def unmark(self) -> None:
        """Forget what earlier attempts came to."""
        for name in (name for status in MARKS for name in marks(status)):
            remove_file(self.path / name)

    def written(self) -> dict[str, Written]:
        """Lengths and hashes of the append-only files, as far as this run wrote them."""
        return {name: Written(self._lengths[name], self._running[name].hexdigest()) for name in RECORDS}

    def disagreement(self, records: Mapping[str, Written]) -> str | None:
        """What a checkpoint that knows these records has against the append-only files; None if nothing."""
        return disagreement(self.path, records)

    def cut(self, records: Mapping[str, Written]) -> None:
        """Cut the append-only files back to what `records` says (missing: to nothing)."""
        for name in RECORDS:
            length = records.get(name, NOTHING).bytes
            with suppress(FileNotFoundError):
                cut_back(self.path / name, length)
            head = (self.path / name).read_bytes() if length else b""
            self._running[name], self._lengths[name] = hashlib.blake2b(head, digest_size=16), len(head)

    def append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to an append-only file."""
        if rows:
            lines = "".join(json.dumps(plain(dict(row)), allow_nan=False) + "\n" for row in rows).encode()
            with open_own(self.path / name, "ab") as file:
                file.write(lines)
            self._running[name].update(lines)
            self._lengths[name] += len(lines)

    def rows(self) -> list[dict[str, Any]]:
        """The evaluated steps so far."""
        path = self.path / METRICS
        return [in_new_words(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def finish(self, facts: Mapping[str, Any], *, diverged_at: int | None, rounds: int) -> dict[str, Any]:
        """Write `summary.json`: its presence is what makes a run finished. `diverged_at` is the step of divergence."""
        if reason := self.disagreement(self.written()):
            raise StoreError(
                f"run {self.run_id}: somebody else wrote to its folder while it ran ({reason}); type the command again"
            )
        diverged = diverged_at is not None
        told = {"finished": True, "diverged": diverged, **({"diverged_at": diverged_at} if diverged else {})}
        summary = {**facts, **told, **summarise(self.rows(), diverged, rounds)}
        return seal(self.path, plain(summary))


def in_new_words(row: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics or diagnostics as it is written now; 0.1 called a step of the evaluation grid a round."""
    return {RENAMED.get(key, key): value for key, value in row.items()}


def summarise(rows: Sequence[Mapping[str, Any]], diverged: bool, rounds: int) -> dict[str, Any]:
    """Best, last and mean of the last ten of each test metric, and the final cost.

    A loss that is not finite (null in its row) is never the best, and makes the last or the mean it belongs to null.
    """
    result: dict[str, Any] = {}
    for name in (*SCORES, *([TOP5] if rows and TOP5 in rows[-1] else [])):
        values = [row[name] for row in rows]
        places = [(row["step"], row[name]) for row in rows]
        result[name] = {
            "best": best(name, values),
            "last": None if diverged else last(values),
            "last10": None if diverged else last10(places, rounds),
        }
    if rows:
        result |= {name: value for name, value in rows[-1].items() if name.startswith("comm/")}
        result["time/total_s"] = rows[-1].get("time/total_s")
    return result
