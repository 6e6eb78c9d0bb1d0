"""A run's folder: what it is called, what it holds, and how far it has come.

`metrics.jsonl` and `diagnostics.jsonl` only grow; a checkpoint notes their lengths, and a resumed run first cuts them
back to those, so that an interrupted run ends with the very file of an uninterrupted one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fnll.diagnostics import plain
from fnll.errors import UserError
from fnll.files import read_json, write_json

METRICS, DIAGNOSTICS = "metrics.jsonl", "diagnostics.jsonl"
SCORES = ("test/accuracy", "test/balanced_accuracy", "test/loss")
LAST = 10  # evaluations that `last10` averages
HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)  # what a system answers where another process has the lock
MARKS = ("failed", "skipped")  # what an earlier attempt came to: failed.json, skipped.json


class BusyError(UserError):
    """Another process is at work on this very run."""


class StoreError(UserError):
    """The run folder cannot be written: no run of this store can go on."""


class DeclinedError(UserError):
    """The method says that it is not made for this scenario."""


class RunFolder:
    """`<runs_dir>/<run_id>/`, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists()

    def summary(self) -> dict[str, Any]:
        try:
            return read_json(self.path / "summary.json")
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.path / 'summary.json'} cannot be read ({error}); delete it and type the command again to have "
                "it written anew"
            ) from None

    def open(self) -> None:
        """Make the folder and take its lock, which the system releases however this process ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("w")
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
        for left in self.path.glob(".*.*"):  # by a process that was killed in `write_atomic`
            left.unlink()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def mark(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write down what this attempt came to, if it did not come to an end; `name` is one of `MARKS`."""
        write_json(self.path / f"{name}.json", plain(dict(facts)))

    def unmark(self) -> None:
        """Forget what earlier attempts came to."""
        for name in MARKS:
            (self.path / f"{name}.json").unlink(missing_ok=True)

    def lengths(self) -> dict[str, int]:
        """Current sizes of the append-only files."""
        return {name: _size(self.path / name) for name in (METRICS, DIAGNOSTICS)}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Cut the append-only files back to `lengths` (missing: to nothing)."""
        for name in (METRICS, DIAGNOSTICS):
            path, length = self.path / name, lengths.get(name, 0)
            if path.exists():
                os.truncate(path, length)

    def append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to an append-only file."""
        if rows:
            with (self.path / name).open("a") as file:
                file.writelines(json.dumps(plain(dict(row)), allow_nan=False) + "\n" for row in rows)

    def readable(self, length: int) -> bool:
        """Whether the first `length` bytes of the metrics are whole rows, as a checkpoint of that length supposes."""
        path = self.path / METRICS
        head = path.read_bytes()[:length] if path.exists() else b""
        try:
            return len(head) == length and all(isinstance(json.loads(line), dict) for line in head.splitlines())
        except ValueError:
            return False

    def rows(self) -> list[dict[str, Any]]:
        """The evaluated rounds so far."""
        path = self.path / METRICS
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def finish(self, facts: Mapping[str, Any], *, diverged: bool, rounds: int) -> dict[str, Any]:
        """Write `summary.json`, last and atomically: its presence is what makes a run finished."""
        summary = {**facts, "finished": True, "diverged": diverged, **summarise(self.rows(), diverged, rounds)}
        write_json(self.path / "summary.json", plain(summary))
        return summary


def summarise(rows: Sequence[Mapping[str, Any]], diverged: bool, rounds: int) -> dict[str, Any]:
    """Best, last and mean of the last ten of each test metric, and the final cost.

    A loss that is not finite (null in its row) is never the best, and makes the last or the mean it belongs to null.
    """
    result: dict[str, Any] = {}
    for name in SCORES:
        values = [row[name] for row in rows]
        finite = [value for value in values if value is not None]
        tail = [row[name] for row in rows if row["round"] > rounds - LAST]
        pick = min if name == "test/loss" else max
        result[name] = {
            "best": pick(finite) if finite else None,
            "last": None if diverged or not values else values[-1],
            "last10": None if diverged or not tail or None in tail else sum(tail) / len(tail),
        }
    if rows:
        result |= {name: value for name, value in rows[-1].items() if name.startswith("comm/")}
        result["time/total_s"] = rows[-1].get("time/total_s")
    return result


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
