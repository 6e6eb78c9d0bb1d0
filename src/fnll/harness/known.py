"""Finding a finished run by what was typed: without its data, and without torch, which takes seconds to import.

A run's id needs its scenario. Its *key* does not: it hashes the settings as they were typed, the code, the versions
and what the system says about the data's files. Whoever finishes a run, or finds it by its id, notes the key twice: in
`asked.json` in the run's folder, and as the name of a small file in `<runs_dir>/.index`, which holds the run's id.

Only the folder's own word counts. An index that is old, damaged or gone costs time: the run is then found by its id, as
ever, and noted again. It never shows another run.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fnll import NUMBERS
from fnll.harness.config import Request, store_of
from fnll.harness.identity import VERSIONED, settings, source_digest, targets
from fnll.harness.integrity import MANIFEST, Condition, examine
from fnll.harness.status import SUMMARY
from fnll.system.files import PLAIN, own_folder, read_json, remove_leftovers, write_atomic, write_json
from fnll.system.marks import Mark

INDEX, ASKED = ".index", "asked.json"
KEYS = 16  # of one run: it may be asked for in several words, from several machines
FILES = 100_000  # a data set's root with more is not looked through
FRESH = 10.0  # seconds that a look at a data set's files is good for, within one sweep
SCENE = ("dataset", "partition", "noise", "scenario", "model")  # groups that read files
OURS = ("fnll", "torch", "torchvision")  # whose code reads no files but those that the settings name
UNTOLD = {"fnll.scenario.datasets.table"}  # a table names files that may lie anywhere
VERSIONS = ("torch", "torchvision", "lightning", "numpy", "scipy", "scikit-learn", "pillow")
GRAPHICS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def finished(request: Request) -> dict[str, Any] | None:
    """The summary of the finished run that `request` describes, if its store knows it by its key."""
    key = key_of(request)
    return None if key is None else recall(store_of(request.cfg), key)


def recall(store: Path, key: str) -> dict[str, Any] | None:
    """The summary of the finished run with this key, as the run's own folder has it."""
    if not (store / INDEX).is_dir():
        _rebuild(store)
    try:
        run_id = (store / INDEX / key).read_text().strip()
        if not PLAIN.fullmatch(run_id):
            return None
        asked, manifest, summary = (read_json(store / run_id / name) for name in (ASKED, MANIFEST, SUMMARY))
        same = asked["run_id"] == manifest["run_id"] == summary["run_id"] == run_id and manifest["numbers"] == NUMBERS
        whole = examine(store / run_id).state is Condition.INTACT
        return dict(summary) if same and whole and key in asked["keys"] else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def note(folder: Path, key: str | None) -> None:
    """Write down that a finished run is what `key` asks for; where that cannot be written, nothing is lost but time."""
    if key is None:
        return
    with suppress(OSError):
        keys = _keys(folder)
        if key not in keys:
            remove_leftovers(folder)  # of whoever was killed at this very moment; nobody opens a finished run again
            write_json(folder / ASKED, {"run_id": folder.name, "keys": [*keys[1 - KEYS :], key]})
        write_atomic(own_folder(folder.parent / INDEX) / key, folder.name)


def _keys(folder: Path) -> list[str]:
    try:
        asked = read_json(folder / ASKED)
        return [str(key) for key in asked["keys"]] if asked["run_id"] == folder.name else []
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _rebuild(store: Path) -> None:
    """The index from what the runs' folders say."""
    with suppress(OSError):
        for asked in store.glob(f"*/{ASKED}"):
            for key in filter(PLAIN.fullmatch, _keys(asked.parent)):
                write_atomic(own_folder(store / INDEX) / key, asked.parent.name, durable=False)


def key_of(request: Request) -> str | None:
    """A hash of all that decides which run a request is; None where that cannot be told without doing it."""
    cfg: Any = OmegaConf.to_container(request.cfg)
    scene = {group: cfg[group] for group in SCENE}
    files = stamps(scene)
    counting = settings(request)
    tops = _tops([counting, scene, cfg["executor"]]).difference(VERSIONED)
    code = {top: source_digest(top) for top in sorted(tops | {"fnll"})}
    foreign = _tops(scene).difference(OURS) | UNTOLD.intersection(targets(scene))
    if files is None or foreign or None in code.values():
        return None
    # A scenario file, or data that name their clients, refuse some words even where they change nothing: `typed`.
    executor = cfg["executor"] if isinstance(cfg["executor"], dict) else {}
    known = {
        "numbers": NUMBERS,
        "method": request.name,
        "settings": counting,
        "executor": {name: executor.get(name) for name in ("_target_", "threads")},
        "device": [cfg["device"], _graphics()],
        "typed": [word for word in request.overrides if "path" in scene["scenario"] or "num_clients=" in word],
        "code": code,
        "versions": _versions(),
        "files": files,
    }
    text = json.dumps(known, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _tops(node: object) -> set[str]:
    """The packages that a config takes things from."""
    return {target.split(".")[0] for target in targets(node)}


def stamps(scene: Mapping[str, Any]) -> list[str] | None:
    """What the system says about every file and folder that the settings name; None if that does not tell changes."""
    now = time.time_ns()
    found = [_stamp(place, now) for place in sorted({os.path.expanduser(text) for text in _texts(scene)})]
    return None if None in found else [stamp for stamp in found if stamp]


_seen: dict[str, tuple[float, str | None]] = {}


def _stamp(place: str, now: int) -> str | None:
    """A hash of the marks of what lies at `place`; empty if there is nothing."""
    when, stamp = _seen.get(place, (-FRESH, ""))
    if time.monotonic() - when >= FRESH:
        stamp = _looked_at(place, now)
        _seen[place] = time.monotonic(), stamp
    return stamp


def _looked_at(place: str, now: int) -> str | None:
    digest, count = hashlib.blake2b(digest_size=16), 0
    try:
        for path in _below(place):
            mark, count = Mark.of(path), count + 1
            if not mark.tells_changes(now) or count > FILES:
                return None
            digest.update(f"{path}\0{tuple(mark)}\0".encode(errors="surrogateescape"))
    except OSError:  # a link that leads nowhere, or something that may not be read
        return None
    return digest.hexdigest() if count else ""


def _below(place: str) -> Iterator[str]:
    if os.path.isfile(place):
        yield os.path.abspath(place)
    for folder, inside, names in os.walk(os.path.abspath(place), followlinks=True):
        inside[:] = sorted(name for name in inside if name[0] != ".")  # hidden ones are no data: locks, for example
        yield from (os.path.join(folder, name) for name in sorted(names) if name[0] != ".")


def _texts(node: object) -> Iterator[str]:
    """Every value that could be a path."""
    if isinstance(node, str) and node:
        yield node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from () if key == "_target_" else _texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value)


def _graphics() -> list[Any]:
    """What device=auto depends on."""
    return [sorted(path for pattern in GRAPHICS for path in glob(pattern)), [os.environ.get(name) for name in VISIBLE]]


@cache
def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
