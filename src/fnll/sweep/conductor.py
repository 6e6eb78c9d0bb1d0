"""Keeps a launcher busy until every run of a sweep has an outcome."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from fnll.errors import UserError
from fnll.sweep.bundles import Bundle
from fnll.sweep.events import Begun, Ended, Ending, Event, Lost, Outcome
from fnll.sweep.grid import PlannedRun

TRIES = 2  # a run whose process died is tried once more
TICK = 0.25  # seconds between two looks at the clock
TAIL = 3  # bundles for each place that are left when those that take longest go first


class Launcher(Protocol):
    """Does runs somewhere."""

    room: int  # bundles that it takes at a time
    together: int  # runs that it can advance side by side, if they train alike
    manner: str  # how it does them, for a person
    patience: float  # seconds after which a run that is busy elsewhere is asked for again

    def submit(self, bundles: Sequence[Bundle]) -> None: ...

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
        self.waiting: deque[Bundle] = deque()
        self.running: dict[PlannedRun, Bundle] = {}
        self.postponed: list[tuple[float, PlannedRun]] = []  # when to ask again
        self.deaths: Counter[PlannedRun] = Counter()
        self.begun: dict[Bundle, float] = {}  # when
        self.paces: dict[str, float] = {}  # of a method: the longest that a bundle of it took so far
        self.folders: dict[PlannedRun, str] = {}
        self.outcomes: dict[PlannedRun, Outcome] = {}

    def run(self, bundles: Sequence[Bundle]) -> dict[PlannedRun, Outcome]:
        """Do the runs; returns when all have an outcome, raises if none of them can be stored."""
        runs = [run for bundle in bundles for run in bundle]
        self.waiting.extend(bundles)
        while len(self.outcomes) < len(runs):
            self._submit()
            if len(self.outcomes) < len(runs):
                for run, event in self.launcher.events(TICK):
                    self._handle(run, event)
            self.display.tick()
        return {run: self.outcomes[run] for run in runs}

    def _submit(self) -> None:
        now = self.clock()
        due = [(run,) for when, run in self.postponed if when <= now]
        self.postponed = [(when, run) for when, run in self.postponed if when > now]
        self.waiting.extend(due)
        chosen: list[Bundle] = []
        free = self.launcher.room - len(set(self.running.values()))
        while self.waiting and len(chosen) < free:
            if bundle := tuple(run for run in self._next(now) if not self._recalled(run)):
                chosen.append(bundle)
        if chosen:
            self.running.update((run, bundle) for bundle in chosen for run in bundle)
            self.begun.update(dict.fromkeys(chosen, now))
            self.launcher.submit(chosen)

    def _next(self, now: float) -> Bundle:
        """The next in the plan; towards the end the one whose method takes longest, lest one place end late."""
        for running in set(self.running.values()):
            self._time(running, now)
        if self.paces and len(self.waiting) <= TAIL * self.launcher.room:
            unknown = math.inf  # a method that has not begun yet: in the order of the plan
            chosen = max(self.waiting, key=lambda bundle: self.paces.get(bundle[0].method, unknown))
            self.waiting.remove(chosen)
            return chosen
        return self.waiting.popleft()

    def _time(self, bundle: Bundle, now: float) -> None:
        """Note how long a bundle has taken by now."""
        method = bundle[0].method
        self.paces[method] = max(self.paces.get(method, 0.0), now - self.begun[bundle])

    def _recalled(self, run: PlannedRun) -> bool:
        """Whether the run was finished before; then it is settled."""
        if outcome := self.recall(run):
            self._settle(run, outcome)
            self.display.tick()
        return outcome is not None

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
        self._time(self.running.pop(run), self.clock())
        if outcome.kind is Ending.BLOCKED:
            raise UserError(f"{outcome.detail}; once that is fixed, the same command resumes")
        if outcome.kind is Ending.BUSY:
            self.postponed.append((self.clock() + self.launcher.patience, run))
            self.display.postpone(run)
        else:
            self._settle(run, outcome)

    def _lost(self, run: PlannedRun, reason: str) -> None:
        del self.running[run]
        self.deaths[run] += 1
        if self.deaths[run] < TRIES:
            self.display.postpone(run)
            self.waiting.appendleft((run,))  # by itself, whoever was with it
            return
        text = f"its process died {TRIES} times, last by {reason}"
        if run in self.folders:
            from fnll.sweep.perform import give_up  # late: the conductor itself needs no torch

            give_up(run, self.folders[run], text)
        self._settle(run, Outcome(Ending.FAILED, text))

    def _settle(self, run: PlannedRun, outcome: Outcome) -> None:
        self.outcomes[run] = outcome
        self.display.settle(run, outcome)
