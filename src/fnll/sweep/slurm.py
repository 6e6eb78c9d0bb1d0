"""Runs as jobs of a batch system, through submitit: SLURM, or processes of this machine to try it out."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field

from fnll.errors import UserError
from fnll.settings import check_arguments
from fnll.sweep import events
from fnll.sweep.bundles import Bundle
from fnll.sweep.events import Ended, Ending, Event, Lost, Outcome
from fnll.sweep.grid import PlannedRun
from fnll.system.files import append_line

FOLDER = ".submitit"  # in the store: scripts, logs and the runs' progress
SILENCE = 1.0  # seconds between two looks at the files, and between two lines of one run's progress


@dataclass
class Manner:
    """What we make of the settings ourselves; the others are submitit's."""

    runs_per_job: Annotated[int, Field(ge=1, description="runs that one job does in a row")]


class Submitit:
    """Every run, or every few runs, a job of its own; all are submitted at once and wait in the system's queue."""

    patience = 60.0
    together = 1

    def __init__(self, settings: Mapping[str, Any], runs_dir: Path, total: int) -> None:
        parameters = dict(settings)
        cluster, self.at_a_time = parameters.pop("cluster"), parameters.pop("runs_per_job")
        check_arguments(Manner, settings, "sweep.submitit")
        self.room, self.manner = total, f"as jobs of submitit ({cluster})"
        self.folder = (runs_dir / FOLDER).resolve()
        try:
            self.executor = _import_submitit().AutoExecutor(folder=self.folder, cluster=cluster)
            self.executor.update_parameters(**{"name": "fnll", **parameters})
        except (AssertionError, NameError, RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise UserError(f"sweep.submitit: {text}; sweep.submitit.cluster=local needs no SLURM") from error
        self._pending: list[_Submission] = []

    def submit(self, bundles: Sequence[Bundle]) -> None:
        runs = [run for bundle in bundles for run in bundle]
        parts = [tuple(runs[i : i + self.at_a_time]) for i in range(0, len(runs), self.at_a_time)]
        stamp = f"{time.time_ns():x}"
        tasks = [SlurmBatch(part, str(self.folder / f"progress-{stamp}-{i}.jsonl")) for i, part in enumerate(parts)]
        with self.executor.batch():  # one array job, where the system has those
            handles = [self.executor.submit(task) for task in tasks]
        self._pending += [_Submission(task, handle) for task, handle in zip(tasks, handles, strict=True)]

    def events(self, timeout: float) -> list[tuple[PlannedRun, Event]]:
        time.sleep(max(timeout, SILENCE))
        told = [event for submission in self._pending for event in submission.hear()]
        self._pending = [submission for submission in self._pending if submission.open]
        return told

    def close(self) -> None:
        for submission in self._pending:
            submission.handle.cancel(check=False)


class _Submission:
    """A job of the batch system as this side sees it."""

    def __init__(self, task: SlurmBatch, handle: Any) -> None:
        self.task, self.handle = task, handle
        self.open = set(range(len(task.runs)))
        self._read = 0

    def hear(self) -> list[tuple[PlannedRun, Event]]:
        over = self.handle.done()
        told = self._progress()
        if over and self.open:
            told += [(self.task.runs[i], event) for i, event in enumerate(self._rest()) if i in self.open]
            self.open.clear()
        return told

    def _progress(self) -> list[tuple[PlannedRun, Event]]:
        """New lines of the progress file. Its last line may still be in the writing."""
        path = Path(self.task.progress)
        text = path.read_bytes()[self._read :] if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        told = [(i, event) for i, event in map(_decode, whole.decode().splitlines()) if i in self.open]
        self.open -= {i for i, event in told if isinstance(event, Ended)}
        return [(self.task.runs[i], event) for i, event in told]

    def _rest(self) -> list[Event]:
        """What became of the runs that the progress file says nothing about."""
        error = self.handle.exception()
        if error is None:
            return [Ended(outcome) for outcome in self.handle.result()]
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        logs = f"{reason} (log: {self.handle.paths.stderr})"
        return [Lost(logs)] * len(self.task.runs)


class SlurmBatch:
    """What a job of the batch system does. If its time is up, submitit asks for the checkpoint and queues that."""

    def __init__(self, runs: tuple[PlannedRun, ...], progress: str) -> None:
        self.runs, self.progress, self.directory = runs, progress, os.getcwd()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A batch that was queued by an earlier version calls its runs `jobs`."""
        self.__dict__.update({"runs" if name == "jobs" else name: value for name, value in state.items()})

    def __call__(self) -> list[Outcome]:
        from fnll.sweep.perform import perform

        os.chdir(self.directory)
        return [self._do(i, perform) for i in range(len(self.runs))]

    def _do(self, i: int, perform: Any) -> Outcome:
        spoken = 0.0

        def send(event: Event) -> None:
            nonlocal spoken
            if isinstance(event, events.Evaluated) and time.monotonic() - spoken < SILENCE:
                return
            spoken = time.monotonic()
            append_line(Path(self.progress), _encode(i, event))

        outcome: Outcome = perform(self.runs[i], send)
        send(Ended(outcome))
        return outcome

    def checkpoint(self) -> Any:
        """The same once more: runs are resumed from their own checkpoints, finished ones are skipped."""
        return _import_submitit().helpers.DelayedSubmission(self)


def _encode(i: int, event: Event) -> str:
    return json.dumps([i, type(event).__name__, dataclasses.asdict(event)])


def _decode(line: str) -> tuple[int, Event]:
    i, name, fields = json.loads(line)
    if name == Ended.__name__:
        outcome = fields["outcome"]
        warnings = tuple(outcome["warnings"])
        return i, Ended(Outcome(**{**outcome, "kind": Ending(outcome["kind"]), "warnings": warnings}))
    event: Event = getattr(events, name)(**fields)
    return i, event


def _import_submitit() -> ModuleType:
    try:
        import submitit
    except ImportError as error:
        raise UserError("sweep.launcher=submitit needs the package submitit; pip install 'fnll[slurm]'") from error
    return submitit
