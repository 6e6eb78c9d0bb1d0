"""Whether a run folder holds what the run wrote: records are hashed with every checkpoint, all files with the summary.

A hash tells damage, lost lines and edits; it is no signature, so somebody who makes up a whole run can hash it, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from fnll.harness.status import SUMMARY, Status, status_in
from fnll.system.files import write_json
from fnll.system.foreign import ForeignError, digest, file_digest, json_object, json_of, read, yaml_mapping

FORMAT = 3  # of run folders, in manifest.json; 1, without the number, named states by modules, 2 had no hashes
METRICS, DIAGNOSTICS = "metrics.jsonl", "diagnostics.jsonl"
CONFIG, MANIFEST, WEIGHTS = "config.yaml", "manifest.json", "weights.safetensors"
RECORDS = (METRICS, DIAGNOSTICS)
CLIENTS, SAMPLES = "clients.csv", "samples.csv"  # the verdict of a run on somebody's own data
SEALED = (METRICS, DIAGNOSTICS, CONFIG, MANIFEST, WEIGHTS, CLIENTS, SAMPLES)
FILES, CHECKSUM = "files", "checksum"  # keys of a summary
SNAPSHOTS = "snapshot-*.json"
BLOB = re.compile(r"[0-9a-f]{32}\.safetensors")
ENDLESS = 1 << 50  # bytes: weights may be large


class Condition(StrEnum):
    """What is known about a run folder's content."""

    INTACT = "intact"
    UNVERIFIED = "unverified"  # of an older format, without hashes; or without anything to compare with yet
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Finding:
    """What is known about a run folder's content, and what is wrong with it."""

    state: Condition
    reason: str = ""


class Written(NamedTuple):
    """How many bytes of a file there are, and their hash."""

    bytes: int
    blake2b: str


NOTHING = Written(0, digest(b""))


def seal(folder: Path, summary: Mapping[str, Any], *, durable: bool = True) -> dict[str, Any]:
    """Write `summary.json`, last and atomically, with hashes of all that the run wrote before, and one of itself."""
    found = {name: Written(*file_digest(folder / name)) for name in SEALED if (folder / name).exists()}
    whole = {**summary, FILES: {name: list(written) for name, written in found.items()}}
    whole[CHECKSUM] = checksum(whole)
    write_json(folder / SUMMARY, whole, durable=durable)
    return whole


def checksum(summary: Mapping[str, Any]) -> str:
    """A hash of what a summary says, whatever the order and form in which it says it."""
    said = {key: value for key, value in summary.items() if key != CHECKSUM}
    return digest(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())


def format_of(manifest: Mapping[str, Any]) -> int:
    """The format of the run folder that a manifest lies in."""
    found = manifest.get("format", 1)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ForeignError(f"{MANIFEST}: format is no whole number")
    return found


def examine(folder: Path, *, thorough: bool = False) -> Finding:
    """Compare a run folder with what the run noted about it; `thorough` reads weights and checkpoints, too."""
    try:
        if thorough and (folder / CONFIG).exists():
            yaml_mapping(folder / CONFIG)
        if status_in(folder) is Status.FINISHED:
            return _finished(folder, thorough)
        return _unfinished(folder, thorough)
    except (OSError, ValueError) as error:
        return Finding(Condition.DAMAGED, in_words(error))


def in_words(error: Exception) -> str:
    """What is wrong with a file, in one line."""
    if isinstance(error, OSError):
        name = Path(str(error.filename)).name if error.filename else "a file"
        return f"{name}: {error.strerror or error}"
    return " ".join(str(error).split())


def _finished(folder: Path, thorough: bool) -> Finding:
    summary = json_object(folder / SUMMARY)
    if CHECKSUM not in summary:
        if (folder / MANIFEST).exists() and format_of(json_object(folder / MANIFEST)) >= FORMAT:
            return Finding(Condition.DAMAGED, f"{SUMMARY} has lost its checksum")
        return Finding(Condition.UNVERIFIED, "its folder is of an older format, which has no hashes")
    if summary[CHECKSUM] != checksum(summary):
        return Finding(Condition.DAMAGED, f"{SUMMARY} is not what the run wrote")
    sealed = _written_of(summary.get(FILES))
    wrong = list(differing(folder, {k: v for k, v in sealed.items() if thorough or k != WEIGHTS}))
    wrong += [f"{name} was not there when the run ended" for name in SEALED if _added(folder, name, sealed)]
    return Finding(Condition.DAMAGED, "; ".join(wrong)) if wrong else Finding(Condition.INTACT)


def _added(folder: Path, name: str, sealed: Mapping[str, Written]) -> bool:
    return name not in sealed and (folder / name).exists()


def differing(folder: Path, written: Mapping[str, Written]) -> Iterable[str]:
    """What is wrong with files of which hashes are known, in words."""
    for name, (length, known) in written.items():
        path = folder / name
        if not path.exists():
            yield f"{name} is missing"
        elif path.stat().st_size != length:
            yield f"{name} has {path.stat().st_size} bytes where the run wrote {length}"
        elif file_digest(path) != (length, known):
            yield f"{name} is not what the run wrote"


def _unfinished(folder: Path, thorough: bool) -> Finding:
    """An unfinished run is held to its newest checkpoint, whose files `thorough` reads as well."""
    manifest = json_object(folder / MANIFEST) if (folder / MANIFEST).exists() else {}
    snapshots = sorted((folder / "checkpoint").glob(SNAPSHOTS), reverse=True)
    if not snapshots or format_of(manifest) < FORMAT:
        return Finding(Condition.UNVERIFIED, "it has no checkpoint with hashes")
    body = snapshot_body(snapshots[0])
    if reason := disagreement(folder, records_of(body)):
        return Finding(Condition.DAMAGED, reason)
    for name in body["files"] if thorough else ():
        blob(folder / "checkpoint" / "blobs", name)
    return Finding(Condition.INTACT)


def disagreement(folder: Path, records: Mapping[str, Written]) -> str | None:
    """What is wrong with the growing files, of which a checkpoint knows the beginning; None if all is well."""
    for name in RECORDS:
        length, known = records.get(name, NOTHING)
        found = file_digest(folder / name, length) if (folder / name).exists() else NOTHING
        if name not in records and (folder / name).exists() and (folder / name).stat().st_size:
            return f"it says nothing about {name}"
        if found[0] < length:
            return f"{name} has lost records: {found[0]} of {length} bytes are left"
        if found[1] != known:
            return f"{name} is not what the run wrote"
    return None


def snapshot_body(path: Path) -> dict[str, Any]:
    """What a checkpoint says, if it is whole."""
    outer = json_object(path)
    text = outer.get("body")
    if not isinstance(text, str) or digest(text.encode()) != outer.get("checksum"):
        raise ForeignError(f"{path.name}: its checksum does not match")
    body = json_of(text, path.name)
    if not isinstance(body, dict) or not isinstance(body.get("files"), list):
        raise ForeignError(f"{path.name} is not what a run writes")
    return body


def records_of(body: Mapping[str, Any]) -> dict[str, Written]:
    """Lengths and hashes of the growing files in a checkpoint."""
    return _written_of(body.get("records"))


def blob(blobs: Path, name: object) -> bytes:
    """The content of a file of a checkpoint, whose name is its hash."""
    if not isinstance(name, str) or not BLOB.fullmatch(name):
        raise ForeignError(f"it names {str(name)[:80]!r}, which is no file of a checkpoint")
    content = read(blobs / name, ENDLESS)
    if f"{digest(content)}.safetensors" != name:
        raise ForeignError(f"{name} is not what the run wrote")
    return content


def _written_of(found: object) -> dict[str, Written]:
    if not isinstance(found, dict):
        raise ForeignError("there are no hashes where they should be")
    for name, pair in found.items():
        plain = isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and isinstance(pair[1], str)
        if name not in SEALED or not plain or pair[0] < 0:
            raise ForeignError(f"the hash of {str(name)[:80]!r} is not what a run writes")
    return {name: Written(*pair) for name, pair in found.items()}
