"""What became of a run, and by which file in its folder one sees it."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

from fnll.system.foreign import text

SUMMARY = "summary.json"
WARNINGS = "warnings.jsonl"


class Status(StrEnum):
    """What became of a run; the words that reports, sweeps and the tests use."""

    FINISHED = "finished"
    DIVERGED = "diverged"  # finished early: its weights stopped being finite
    FAILED = "failed"
    DECLINED = "declined"  # the method says that it is not made for this scenario
    UNFINISHED = "unfinished"  # under way, or interrupted
    DAMAGED = "damaged"  # its folder does not hold what the run wrote
    UNREADABLE = "unreadable"  # its folder says nothing that could be shown


MARKS = {  # what an attempt that did not come to an end leaves behind
    Status.DECLINED: "declined.json",
    Status.FAILED: "failed.json",
}
FORMERLY = {Status.DECLINED: "skipped.json"}  # what earlier versions called them


def marks(status: Status) -> tuple[str, ...]:
    """The files that mark a run as `status`: the one that is written, and what it was called before."""
    return MARKS[status], *([FORMERLY[status]] if status in FORMERLY else [])


def mark_in(folder: Path) -> tuple[Status, Path] | None:
    """What the last attempt at a run came to, with the file that says why; None if it left no mark."""
    found = [(status, folder / name) for status in MARKS for name in marks(status)]
    return next((pair for pair in found if pair[1].exists()), None)


def status_in(folder: Path) -> Status:
    """The status of a run by the files alone: a summary is written last, so it outweighs marks of earlier attempts.

    Whether a finished run diverged is in its summary.
    """
    if (folder / SUMMARY).exists():
        return Status.FINISHED
    found = mark_in(folder)
    return found[0] if found else Status.UNFINISHED


def warnings_in(folder: Path) -> list[dict[str, str]]:
    """What a run warned of, in order: `logger`, `text`, and for scenarios `about`, in words that all seeds share."""
    path = folder / WARNINGS
    found: list[dict[str, str]] = []
    for line in text(path).splitlines() if path.exists() else []:
        try:
            notice = json.loads(line)
        except (ValueError, RecursionError):
            continue  # torn by a kill
        if isinstance(notice, dict) and all(isinstance(value, str) for value in notice.values()) and "text" in notice:
            found.append(notice)
    return found
