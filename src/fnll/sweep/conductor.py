"""Keeps a launcher busy until every run of a sweep has an outcome."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from fnll.errors import UserError
from fnll.sweep.events import Begun, Ended, Ending, Event, Lost, Outcome
from fnll.sweep.grid import PlannedRun

TRIES = 2  # a run whose process died is tried once more
TICK = 0.25  # seconds between two looks at the clock


class Launcher(Protocol):
    """Does runs somewhere."""

    room: int  # runs that it takes at a time
    manner: str  # how it does them, for a person
    patience: float  # seconds after which a run that is busy elsewhere is asked for again

    def submit(self, runs: Sequence[PlannedRun]) -> None: ...

    def events(self, timeout: float) -> list[tuple[PlannedRun, Event]]: ...  # as soon as there is one

    def close(self) -> None: ...  # ends what still runs, at once


class Display(Protocol):
    """Shows a sweep to a person."""

    def show(self, run: PlannedRun, event: Event) -> None: ...

    def postpone(self, run: PlannedRun) -> None: ...

    def settle(self, run: PlannedRun, outcome: Outcome) -> None: ...

    def tick(self) -> None: ...


class Conductor:
    """Which run is waiting, under way, postponed or settled."""

    def __init__(
        self,
        launcher: Launcher,
        display: Display,
        clock: Callable[[], float] = time.monotonic,
        recall: Callable[[PlannedRun], Outcome | None] = lambda run: None,  # how a finished run ended
    ) -> None:
        self.launcher, self.display, self.clock, self.recall = launcher, display, clock, recall
        self.waiting: deque[PlannedRun] = deque()
        self.running: set[PlannedRun] = set()
        self.postponed: list[tuple[float, PlannedRun]] = []  # when to ask again
        self.deaths: Counter[PlannedRun] = Counter()
        self.folders: dict[PlannedRun, str] = {}
        self.outcomes: dict[PlannedRun, Outcome] = {}

    def run(self, runs: Sequence[PlannedRun]) -> dict[PlannedRun, Outcome]:
        """Do the runs; returns when all have an outcome, raises if none of them can be stored."""
        self.waiting.extend(runs)
        while len(self.outcomes) < len(runs):
            self._submit()
            if len(self.outcomes) < len(runs):
                for run, event in self.launcher.events(TICK):
                    self._handle(run, event)
            self.display.tick()
        return {run: self.outcomes[run] for run in runs}

    def _submit(self) -> None:
        now = self.clock()
        due = [run for when, run in self.postponed if when <= now]
        self.postponed = [(when, run) for when, run in self.postponed if when > now]
        self.waiting.extend(due)
        chosen: list[PlannedRun] = []
        while self.waiting and len(chosen) < self.launcher.room - len(self.running):
            run = self.waiting.popleft()
            if outcome := self.recall(run):
                self._settle(run, outcome)
                self.display.tick()
            else:
                chosen.append(run)
        if chosen:
            self.running.update(chosen)
            self.launcher.submit(chosen)

    def _handle(self, run: PlannedRun, event: Event) -> None:
        if isinstance(event, Ended):
            self._ended(run, event.outcome)
        elif isinstance(event, Lost):
            self._lost(run, event.reason)
        else:
            if isinstance(event, Begun):
                self.folders[run] = event.folder
            self.display.show(run, event)

    def _ended(self, run: PlannedRun, outcome: Outcome) -> None:
        self.running.remove(run)
        if outcome.kind is Ending.BLOCKED:
            raise UserError(f"{outcome.detail}; once that is fixed, the same command resumes")
        if outcome.kind is Ending.BUSY:
            self.postponed.append((self.clock() + self.launcher.patience, run))
            self.display.postpone(run)
        else:
            self._settle(run, outcome)

    def _lost(self, run: PlannedRun, reason: str) -> None:
        self.running.remove(run)
        self.deaths[run] += 1
        if self.deaths[run] < TRIES:
            self.display.postpone(run)
            self.waiting.appendleft(run)
            return
        text = f"its process died {TRIES} times, last by {reason}"
        if run in self.folders:
            from fnll.sweep.perform import give_up  # late: the conductor itself needs no torch

            give_up(run, self.folders[run], text)
        self._settle(run, Outcome(Ending.FAILED, text))

    def _settle(self, run: PlannedRun, outcome: Outcome) -> None:
        self.outcomes[run] = outcome
        self.display.settle(run, outcome)
