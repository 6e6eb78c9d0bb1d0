"""How long a grid will take on this machine: a short measurement for each kind of run, kept beside the store."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from fnll.sweep.grid import PlannedRun
from fnll.system.files import make_folder, temporary_folder, write_atomic

FILE = ".speed.json"  # in the store
IDLE = ("seed", "scenario_seed", "rounds", "runs_dir", "noise", "eval_every", "sweep")  # what speed does not depend on
COMPANY = 3  # runs that are measured together where the sweep drives more of them together
LONGEST = 60.0  # seconds of measuring at a time; a grid of many kinds is measured in several goes
STEPS = 4  # of a run that are measured; the last one counts, when everything is warm


class Speeds:
    """Seconds that a step of a run takes, by the kind of the run."""

    def __init__(self, store: Path) -> None:
        self.path = store / FILE
        self.known: dict[str, float] = {}
        with suppress(OSError, ValueError, AttributeError):  # none yet, or not ours: measured again
            self.known = {str(kind): float(seconds) for kind, seconds in json.loads(self.path.read_text()).items()}

    def of(self, run: PlannedRun, together: int) -> float | None:
        """Seconds of a step, if runs like this one were measured."""
        return self.known.get(kind_of(run, together))

    def learn(self, runs: Iterable[PlannedRun], together: int) -> None:
        """Measure the kinds of runs that are not known yet, and keep what was found."""
        fresh = {kind_of(run, together): run for run in runs if self.of(run, together) is None}
        end = time.monotonic() + LONGEST
        for kind, run in fresh.items():
            if time.monotonic() > end:
                break
            seconds = measured(run, min(COMPANY, together))
            if seconds is not None:
                self.known[kind] = seconds
        if fresh:
            make_folder(self.path.parent)
            write_atomic(self.path, json.dumps(self.known, indent=1))

    def expected(self, rounds: Mapping[PlannedRun, int], together: int, processes: int) -> float | None:
        """Seconds for so many steps of these runs; None if some of them were not measured."""
        parts = [(self.of(run, together), steps) for run, steps in rounds.items()]
        total = 0.0
        for seconds, steps in parts:
            if seconds is None:
                return None
            total += seconds * steps
        longest = max(((seconds or 0.0) * steps for seconds, steps in parts), default=0.0)
        return max(total / processes, longest if together == 1 else 0.0)


def kind_of(run: PlannedRun, together: int) -> str:
    """A name for runs that are equally fast on this machine."""
    words = sorted(word for word in run.words if word.lstrip("+~").split("=")[0].split(".")[0] not in IDLE)
    facts = [*words, f"together={together > 1}", platform.node(), platform.machine(), str(os.cpu_count())]
    return f"{run.method} {hashlib.blake2b(json.dumps(facts).encode(), digest_size=6).hexdigest()}"


class _EnoughError(BaseException):
    """Ends a run whose speed is known."""


def measured(run: PlannedRun, count: int) -> float | None:
    """Seconds of one step of one of `count` runs like `run`, done for a moment in a store of their own."""
    from fnll.sweep.abreast import Abreast  # late: torch takes seconds to import
    from fnll.sweep.events import Evaluated, Event

    at: list[tuple[float, int]] = []

    def send(event: Event) -> None:
        if isinstance(event, Evaluated):
            at.append((time.monotonic(), event.step))
            if event.step >= STEPS:
                raise _EnoughError

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the runs themselves will say it
    with temporary_folder() as store:
        company = Abreast()
        try:
            for seed in range(count):
                words = (*run.words, f"seed={seed}", f"runs_dir={store}", "eval_every=1")
                company.add(PlannedRun(words, run.method, config_dirs=run.config_dirs, allowed=run.allowed), send)
            while len(company):
                company.turn()
        except _EnoughError:
            pass
        finally:
            company.close()
            logging.disable(before)
    if len(at) < 2:
        return None
    half = at[len(at) // 2 :]
    (began, _), (ended, _) = half[0], half[-1]
    return (ended - began) / (len(half) - 1) if len(half) > 1 else at[-1][0] - at[0][0]
