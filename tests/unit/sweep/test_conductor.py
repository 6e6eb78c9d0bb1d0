"""What a sweep does with its runs' outcomes, and what it tells a person, without any process."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from fnll.errors import UserError
from fnll.harness.status import Status
from fnll.sweep.bundles import Bundle, one_by_one
from fnll.sweep.conductor import Conductor
from fnll.sweep.display import HEARTBEAT, Plain, SweepProgress, Terminal, duration, summarise
from fnll.sweep.events import Begun, Ended, Ending, Evaluated, Event, Lost, Outcome, Said
from fnll.sweep.grid import PlannedRun
from fnll.sweep.machine import cores_of, room_for

A, B, C = (PlannedRun((f"seed={i}",), "fedavg", f"rho=0.{i}", str(i)) for i in range(3))
GOOD = Ended(Outcome(Ending.FINISHED, accuracy=0.9, seconds=12))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Script:
    """A launcher that answers each submission of a run with the next events of that run's script."""

    patience = 10.0
    together = 2
    manner = "by a script"

    def __init__(self, clock: Clock, room: int, script: dict[PlannedRun, list[list[Event]]]) -> None:
        self.clock, self.room, self.script = clock, room, script
        self.submitted: list[tuple[float, PlannedRun]] = []
        self.pending: list[PlannedRun] = []
        self.bundles: list[Bundle] = []
        self.most = 0

    def submit(self, bundles: Sequence[Bundle]) -> None:
        self.bundles += bundles
        runs = [run for bundle in bundles for run in bundle]
        self.submitted += [(self.clock.now, run) for run in runs]
        self.pending += runs
        self.most = max(self.most, len(self.pending))

    def events(self, timeout: float) -> list[tuple[PlannedRun, Event]]:
        self.clock.now += 1.0
        if not self.pending:
            return []
        run = self.pending.pop(0)
        return [(run, event) for event in self.script[run].pop(0)]

    def close(self) -> None: ...


def conduct(
    script: dict[PlannedRun, list[list[Event]]], room: int = 2, bundles: Sequence[Bundle] | None = None
) -> tuple[Script, dict[PlannedRun, Outcome], str]:
    clock = Clock()
    launcher = Script(clock, room, script)
    console = Console(file=io.StringIO(), width=200)
    display = Plain(console, len(script), clock)
    outcomes = Conductor(launcher, display, clock).run(bundles or one_by_one(list(script)))
    assert isinstance(console.file, io.StringIO)
    return launcher, outcomes, console.file.getvalue()


def test_every_run_has_an_outcome_and_no_more_than_there_is_room_for_are_under_way() -> None:
    bad = Ended(Outcome(Ending.FAILED, "method.mu must be at least 0"))
    launcher, outcomes, text = conduct({A: [[GOOD]], B: [[bad]], C: [[GOOD]]}, room=2)
    assert [outcome.kind for outcome in outcomes.values()] == [Ending.FINISHED, Ending.FAILED, Ending.FINISHED]
    assert launcher.most == 2
    assert "2/3  fedavg rho=0.1 seed 1: failed: method.mu must be at least 0" in text
    assert "3/3  fedavg rho=0.2 seed 2: last10 90.00%  12 s" in text


def test_a_run_whose_process_died_is_tried_once_more() -> None:
    launcher, outcomes, _ = conduct({A: [[Lost("SIGKILL")], [GOOD]], B: [[GOOD]]}, room=1)
    assert outcomes[A].kind is Ending.FINISHED
    assert [run for _, run in launcher.submitted] == [A, A, B]


def test_a_run_whose_process_died_twice_has_failed_and_the_others_go_on() -> None:
    _, outcomes, _ = conduct({A: [[Lost("SIGKILL")], [Lost("signal SIGSEGV")]], B: [[GOOD]]})
    assert outcomes[A] == Outcome(Ending.FAILED, "its process died 2 times, last by signal SIGSEGV")
    assert outcomes[B].kind is Ending.FINISHED


def test_a_bundle_is_handed_over_whole_and_its_runs_are_tried_again_each_by_itself() -> None:
    launcher, outcomes, _ = conduct(
        {A: [[Lost("SIGKILL")], [GOOD]], B: [[Lost("SIGKILL")], [GOOD]], C: [[GOOD]]}, room=1, bundles=[(A, B), (C,)]
    )
    assert all(outcome.kind is Ending.FINISHED for outcome in outcomes.values())
    assert launcher.bundles[0] == (A, B)
    assert sorted(launcher.bundles[1:], key=str) == [(A,), (B,), (C,)]
    assert launcher.most == 2


def test_towards_the_end_the_methods_that_take_longest_go_first() -> None:
    runs = [PlannedRun((f"method={m}", f"seed={i}"), m) for i in range(5) for m in ("quick", "slow")]
    script: dict[PlannedRun, list[list[Event]]] = {run: [[GOOD]] for run in runs}

    class Slow(Script):
        def events(self, timeout: float) -> list[tuple[PlannedRun, Event]]:
            self.clock.now += 5.0 * (self.pending[0].method == "slow")
            return super().events(timeout)

    launcher = Slow(Clock(), 1, script)
    Conductor(launcher, Plain(Console(file=io.StringIO()), 10, launcher.clock), launcher.clock).run(one_by_one(runs))
    methods = [run.method for _, run in launcher.submitted]
    assert methods == ["quick", "slow"] * 3 + ["quick", "slow", "slow", "quick"]


def test_a_run_that_another_process_holds_is_asked_for_again_later() -> None:
    busy = Ended(Outcome(Ending.BUSY))
    launcher, outcomes, _ = conduct({A: [[busy], [busy], [Ended(Outcome(Ending.KNOWN))]], B: [[GOOD]]})
    assert outcomes[A].kind is Ending.KNOWN
    times = [when for when, run in launcher.submitted if run is A]
    assert len(times) == 3
    assert all(later - sooner >= Script.patience for sooner, later in itertools.pairwise(times))


def test_a_store_that_cannot_be_written_ends_the_sweep_with_one_message() -> None:
    full = Ended(Outcome(Ending.BLOCKED, "cannot write to runs/x: No space left on device"))
    with pytest.raises(UserError, match="No space left on device; once that is fixed, the same command resumes"):
        conduct({A: [[full]], B: [[full]], C: [[GOOD]]})


def test_time_left_counts_only_work_of_this_sweep() -> None:
    clock = Clock()
    tally = SweepProgress(4, clock)
    tally.settle(A, Outcome(Ending.KNOWN))
    assert tally.left() is None
    tally.show(B, Begun("runs/b", 10, 20))  # resumed half-way
    clock.now = 10.0
    tally.show(B, Evaluated(15, 0.5))
    assert tally.running[B].left(clock.now) == pytest.approx(10.0)  # a quarter of a run took 10 s, a quarter is left
    assert tally.left() == pytest.approx(10.0 / 0.25 * 2.25)
    tally.settle(B, Outcome(Ending.FINISHED))
    assert tally.left() == pytest.approx(10.0 / 0.5 * 2)


def test_plain_output_gives_a_sign_of_life_and_says_a_warning_once() -> None:
    clock = Clock()
    console = Console(file=io.StringIO(), width=200)
    plain = Plain(console, 2, clock)
    plain.show(A, Begun("runs/a", 0, 20))
    plain.show(A, Said("weights [/bold] are odd"))
    plain.show(B, Said("weights [/bold] are odd"))
    plain.show(A, Evaluated(5, 0.5))
    plain.tick()
    clock.now = HEARTBEAT
    plain.tick()
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "fedavg rho=0.0 seed 0: weights [/bold] are odd",
        "0/2 done  3 min 30 s left  fedavg rho=0.0 seed 0 5/20",
    ]


def test_a_terminal_shows_every_run_under_way_with_accuracy_and_time() -> None:
    clock = Clock()
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    with Terminal(console, 3, clock) as terminal:
        terminal.show(A, Begun("runs/a", 0, 20))
        clock.now = 5.0
        terminal.show(A, Evaluated(10, 0.625))
        terminal.settle(B, Outcome(Ending.FAILED, "boom"))
        terminal.tick()
        assert isinstance(console.file, io.StringIO)
        frame = console.file.getvalue()
    assert "fedavg rho=0.1 seed 1: failed: boom" in frame
    line = next(text for text in frame.splitlines() if "10/20" in text)
    assert "fedavg rho=0.0 seed 0" in line
    assert "62.5%" in line
    assert "5 s left" in line
    assert any("1/3" in text and "1 failed" in text for text in frame.splitlines())


def test_the_summary_counts_and_gives_the_command_of_each_failure() -> None:
    outcomes = {
        A: Outcome(Ending.FINISHED),
        B: Outcome(Ending.FAILED, "boom"),
        C: Outcome(Ending.DECLINED, "needs more clients"),
    }
    assert summarise({A: Outcome(Ending.FINISHED), B: Outcome(Ending.FINISHED, Status.DIVERGED)}, 5) == [
        "2 runs in 5 s: 2 finished (1 of them diverged)"
    ]
    assert summarise(outcomes, 75) == [
        "3 runs in 1 min 15 s: 1 finished, 1 declined, 1 failed",
        "declined: needs more clients",
        "  fedavg rho=0.2 seed 2",
        "failed: boom",
        "  fnll run seed=1",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min"), (7930, "2 h 12 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def configs(*nodes: dict[str, object]) -> Iterator[OmegaConf]:
    return (OmegaConf.create({"executor": node}) for node in nodes)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("node", "cores"),
    [
        ({"threads": 1}, 1),
        ({"threads": 3}, 3),
        ({"threads": 1, "workers": 2}, 2),
        ({"threads": 2, "workers": None}, 8),
        ({"threads": 3, "workers": None}, 6),
    ],
)
def test_cores_of_a_run_are_those_of_its_own_workers(node: dict[str, object], cores: int) -> None:
    (cfg,) = configs(node)
    assert cores_of(cfg, usable=8) == cores  # type: ignore[arg-type]


def test_runs_at_a_time_never_need_more_cores_than_there_are() -> None:
    assert room_for(configs({"threads": 1}), most=99, usable=4) == (4, False)
    assert room_for(configs({"threads": 1}), most=3, usable=4) == (3, False)  # a fourth core is not one for each
    assert room_for(configs({"threads": 1}), most=2, usable=4) == (2, True)
    assert room_for(configs({"threads": 1}, {"threads": 1, "workers": None}), most=4, usable=4) == (1, False)
    assert room_for(configs({"threads": 8}), most=4, usable=4) == (1, False)
