"""One run of a sweep, wherever it is done: the same function in a local worker, a SLURM job and a Ray task."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fnll.errors import UserError
from fnll.executors.numerics import limit_threads
from fnll.federation import Executor
from fnll.harness.composer import Composer
from fnll.harness.execute import execute, prepare_or_record, told
from fnll.harness.loggers import watchers
from fnll.harness.prepare import Run
from fnll.harness.run_folder import BusyError, DeclinedError, RunFolder, StoreError
from fnll.harness.status import Status
from fnll.harness.trust import allow
from fnll.harness.warned import Warned, listening
from fnll.sweep.events import Begun, Ending, Evaluated, Outcome, Said, Send
from fnll.sweep.grid import PlannedRun


class Reporter:
    """Watches a run and tells the sweep about it."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.began = False

    def start(self, run: Run, folder: RunFolder) -> None:
        self.began = True
        rows = folder.rows()
        path = str(folder.path.resolve())
        self.send(Begun(path, rows[-1]["step"] if rows else 0, run.cfg.rounds))

    def step(self, row: dict[str, Any], facts: list[dict[str, Any]], rounds: int) -> None:
        self.send(Evaluated(row["step"], row["test/accuracy"]))

    def finish(self, summary: dict[str, Any]) -> None:
        """The outcome says it."""

    def abort(self) -> None:
        """Again, the outcome says it."""


def perform(
    planned: PlannedRun,
    send: Send,
    *,
    spare_core: bool | None = None,
    executor_of: Callable[[Run], Executor] = Run.executor,
) -> Outcome:
    """Do one run, or find out why not. Raises nothing that a run can cause: other runs are waiting."""
    started = time.monotonic()
    reporter = Reporter(send)
    with listening(lambda text, about: send(Said(text, about))) as warned:
        outcome = _attempt(planned, reporter, warned, started, spare_core=spare_core, executor_of=executor_of)
    told = tuple(notice.get("about") or text for text, notice in warned.found.items())
    return replace(outcome, warnings=tuple(dict.fromkeys(told)))


def _attempt(planned: PlannedRun, reporter: Reporter, warned: Warned, started: float, **settings: Any) -> Outcome:
    try:
        allow(*planned.allowed)
        request = _composer(planned.config_dirs)(planned.words)
        limit_threads(OmegaConf.select(request.cfg, "executor.threads", default=1))
        mirrors = watchers(request)
        summary = execute(prepare_or_record(request), [reporter, *mirrors], warned=warned, **settings)
    except BusyError as error:
        return Outcome(Ending.BUSY, str(error))
    except StoreError as error:
        return Outcome(Ending.BLOCKED, str(error))
    except DeclinedError as error:
        return Outcome(Ending.DECLINED, str(error))
    except Exception as error:
        return Outcome(Ending.FAILED, told(error), seconds=time.monotonic() - started)
    kind = Ending.FINISHED if reporter.began else Ending.KNOWN
    detail = Status.DIVERGED if summary["diverged"] else ""
    return Outcome(kind, detail, summary["test/accuracy"]["last10"], time.monotonic() - started)


@lru_cache(maxsize=4)
def _composer(config_dirs: tuple[Path, ...]) -> Composer:
    """One for all runs that this process does: Hydra takes longer than the rest of a small run's beginning."""
    return Composer(config_dirs)


def give_up(planned: PlannedRun, folder: str, reason: str) -> None:
    """Record in its folder that a run failed whose process could not do so itself."""
    run = RunFolder(Path(folder))
    try:
        run.open()
        if not run.finished:
            run.mark(Status.FAILED, {"error": reason, "command": planned.command})
    except (UserError, OSError):
        return  # somebody else is at it again, or nothing can be written: the sweep's summary says it too
    finally:
        run.close()
