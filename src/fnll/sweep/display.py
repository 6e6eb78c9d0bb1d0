"""What a person sees of a sweep: a line for every run under way and one for the whole, or plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fnll.harness.status import Status
from fnll.sweep.events import Begun, Ending, Evaluated, Event, Outcome, Said
from fnll.sweep.grid import PlannedRun

NAMED = 3  # runs that a warning of several is shown with
SHOWN = 2  # commands of runs that failed for one reason
TELLING = 0.05  # the share of a sweep that has to be done before its own pace says more than a measurement
HEARTBEAT = 30.0  # seconds of silence after which plain output says what is going on


@dataclass
class Course:
    """How far a run is."""

    since: float
    first: int = 0  # it was resumed after
    step: int = 0
    rounds: int = 0
    accuracy: float | None = None

    @property
    def share(self) -> float:
        return self.step / self.rounds if self.rounds else 0.0

    @property
    def news(self) -> float:
        """The share of the run that was done in this sweep."""
        return (self.step - self.first) / self.rounds if self.rounds else 0.0

    def left(self, now: float) -> float | None:
        """Seconds to the end, if the rest goes like the part that was done here."""
        return (now - self.since) * (1 - self.share) / self.news if self.news else None


class SweepProgress:
    """How far a sweep is. Runs that were finished before count as done, but not as work."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic, expected: float | None = None) -> None:
        self.total, self.clock, self.started = total, clock, clock()
        self.expected = expected  # seconds for all of it, by what `--dry-run` has measured
        self.running: dict[PlannedRun, Course] = {}
        self.postponed: set[PlannedRun] = set()
        self.ended: Counter[Ending] = Counter()
        self.work = 0.0  # runs' worth of work done by runs that ended

    @property
    def done(self) -> int:
        return self.ended.total()

    @property
    def share(self) -> float:
        return (self.done + sum(course.share for course in self.running.values())) / max(1, self.total)

    def left(self) -> float | None:
        """Seconds to the end, if the rest goes like what was done so far; at first, like what was measured before."""
        work = self.work + sum(course.news for course in self.running.values())
        if self.expected is not None and work < TELLING * self.total:
            return self.expected * (1 - self.share)
        return (self.clock() - self.started) * (1 - self.share) * self.total / work if work else None

    def show(self, run: PlannedRun, event: Event) -> None:
        self.postponed.discard(run)
        if isinstance(event, Begun):
            self.running[run] = Course(self.clock(), event.step, event.step, event.rounds)
        elif isinstance(event, Evaluated) and run in self.running:
            self.running[run].step, self.running[run].accuracy = event.step, event.accuracy

    def postpone(self, run: PlannedRun) -> None:
        self.running.pop(run, None)
        self.postponed.add(run)

    def settle(self, run: PlannedRun, outcome: Outcome) -> None:
        course = self.running.pop(run, None)
        self.postponed.discard(run)
        self.ended[outcome.kind] += 1
        self.work += 1 - course.first / max(1, course.rounds) if course else 0.0


@dataclass(eq=False)
class Plain:
    """One line for each run that ends, and a sign of life in between."""

    console: Console
    total: int
    clock: Callable[[], float] = time.monotonic
    expected: float | None = None

    def __post_init__(self) -> None:
        self.tally = SweepProgress(self.total, self.clock, self.expected)
        self.spoken = self.clock()
        self.warned: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        self.spoken = self.clock()
        self.console.print(text, soft_wrap=True, markup=False)

    def show(self, run: PlannedRun, event: Event) -> None:
        self.tally.show(run, event)
        if isinstance(event, Said) and not self.warned & {event.text, event.about}:
            self.warned |= {event.text, event.about} - {""}  # thirty runs with one warning say it once
            self.say(f"{run}: {event.text}")

    def postpone(self, run: PlannedRun) -> None:
        self.tally.postpone(run)

    def settle(self, run: PlannedRun, outcome: Outcome) -> None:
        self.tally.settle(run, outcome)
        if outcome.kind is not Ending.KNOWN:
            place = f"{self.tally.done:>{len(str(self.tally.total))}}/{self.tally.total}"
            self.say(f"{place}  {run}: {said(outcome)}")

    def tick(self) -> None:
        if self.clock() - self.spoken < HEARTBEAT:
            return
        doing = [f"{run} {course.step}/{course.rounds}" for run, course in self.tally.running.items()]
        doing += [f"{run} waits for another process" for run in self.tally.postponed]
        place = f"{self.tally.done}/{self.tally.total} done"
        self.say("  ".join(text for text in (place, time_left(self.tally.left()), ", ".join(doing)) if text))


class Terminal(Plain):
    """The same lines, and below them one that moves for each run under way and one for the whole sweep."""

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = [TextColumn(f"{{task.fields[{name}]}}") for name in ("count", "note", "left")]
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            *columns,
            console=self.console,
            auto_refresh=False,
            transient=True,
        )
        self.rows: dict[PlannedRun | None, TaskID] = {}  # None is the whole sweep

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.bars.stop()

    def tick(self) -> None:
        tally, now = self.tally, self.clock()
        gone: list[PlannedRun | None] = [run for run in self.rows if run is not None and run not in tally.running]
        if gone or any(run not in self.rows for run in tally.running):
            gone.append(None)  # to be drawn again below the others
        for run in gone:
            if run in self.rows:
                self.bars.remove_task(self.rows.pop(run))
        for run, course in tally.running.items():
            accuracy = "" if course.accuracy is None else f"{course.accuracy:.1%}"
            self._draw(run, course.share, f"{course.step}/{course.rounds}", accuracy, course.left(now))
        failed = f"{tally.ended[Ending.FAILED]} failed" if tally.ended[Ending.FAILED] else ""
        waiting = f"{len(tally.postponed)} busy elsewhere" if tally.postponed else ""
        note = "  ".join(text for text in (failed, waiting) if text)
        self._draw(None, tally.share, f"{tally.done}/{tally.total}", note, tally.left())
        self.bars.refresh()

    def _draw(self, run: PlannedRun | None, share: float, count: str, note: str, left: float | None) -> None:
        fields: dict[str, Any] = {"count": count, "note": note, "left": time_left(left)}
        if run not in self.rows:
            name = escape(str(run)) if run else "all runs"
            self.rows[run] = self.bars.add_task(name, total=1.0, **fields)
        self.bars.update(self.rows[run], completed=share, **fields)


def summarise(outcomes: Mapping[PlannedRun, Outcome], seconds: float) -> list[str]:
    """The lines that end a sweep: how many runs came to what, and each failure with the command that repeats it."""
    counts = Counter(outcome.kind for outcome in outcomes.values())
    diverged = Counter(outcome.kind for outcome in outcomes.values() if outcome.detail == Status.DIVERGED)
    notes = {kind: f" ({number} of them diverged)" for kind, number in diverged.items()}
    counted = ", ".join(f"{counts[kind]} {kind}{notes.get(kind, '')}" for kind in Ending if counts[kind])
    lines = [f"{len(outcomes)} runs in {duration(seconds)}: {counted or 'nothing to do'}"]
    for kind in (Ending.DECLINED, Ending.FAILED):
        reasons: defaultdict[str, list[PlannedRun]] = defaultdict(list)
        for run, outcome in outcomes.items():
            if outcome.kind is kind:
                reasons[outcome.detail].append(run)
        lines += told_once(kind, reasons, commands=kind is Ending.FAILED)
    return [*lines, *_warnings(outcomes)]


def told_once(what: str, reasons: Mapping[str, Sequence[PlannedRun]], *, commands: bool = True) -> list[str]:
    """Each reason once, with the runs it holds for: the first few as commands that repeat them, the others by name."""
    lines = []
    for reason, runs in reasons.items():
        number = f"{len(runs)} runs " if len(runs) > 1 else ""
        lines.append(f"{number}{what}: {reason}")
        shown = runs[:SHOWN] if commands and len(runs) > SHOWN + 1 else runs
        lines += [f"  {run.command}" if commands else f"  {run}" for run in shown]
        if rest := [str(run) for run in runs[len(shown) :]]:
            lines.append(f"  and {len(rest)} more: {', '.join(rest)}")
    return lines


def _warnings(outcomes: Mapping[PlannedRun, Outcome]) -> list[str]:
    """What runs warned of, each with its runs: it is in their folders and below every table, too."""
    found: defaultdict[str, list[PlannedRun]] = defaultdict(list)
    for run, outcome in outcomes.items():
        for text in outcome.warnings:
            found[text].append(run)
    lines = []
    for text, runs in found.items():
        some = ", ".join(map(str, runs[:NAMED])) + (f" and {len(runs) - NAMED} more" if len(runs) > NAMED else "")
        lines.append(f"warning: {text} ({'all runs' if len(runs) == len(outcomes) > 1 else some})")
    return lines


def said(outcome: Outcome) -> str:
    """An outcome in a few words."""
    if outcome.kind not in (Ending.FINISHED, Ending.KNOWN):
        return f"{outcome.kind}: {outcome.detail}"
    accuracy = Status.DIVERGED if outcome.accuracy is None else f"last10 {outcome.accuracy:.2%}"
    return f"{accuracy}  {duration(outcome.seconds)}"


def duration(seconds: float) -> str:
    """`12 s`, `3 min 5 s` or `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def time_left(seconds: float | None) -> str:
    """How long it will still take, or nothing where nobody can know yet."""
    return "" if seconds is None else f"{duration(seconds)} left"
