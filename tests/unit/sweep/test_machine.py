"""The fork server of a sweep dies: the next one starts the workers, and a machine where all die is told in words."""

from __future__ import annotations

import pytest

from fnll.errors import UserError
from fnll.sweep import machine
from fnll.sweep.events import Ended, Ending, Event, Outcome, Said
from fnll.sweep.grid import PlannedRun


class Dying:
    """In place of `Runner`: the fork server dies while the first so many workers are asked for."""

    left = 0

    def __init__(self, spare_core: bool) -> None:
        if Dying.left:
            Dying.left -= 1
            raise EOFError  # what multiprocessing meets at the end of a dead fork server's pipe


@pytest.mark.parametrize("deaths", [0, 1, machine.TRIES - 1])
def test_a_dead_fork_server_is_replaced(deaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[int] = []
    monkeypatch.setattr(machine, "Runner", Dying)
    monkeypatch.setattr(machine, "warm_up", lambda: warmed.append(Dying.left))
    Dying.left = deaths
    assert isinstance(machine.new_worker(spare_core=False), Dying)
    assert len(warmed) == deaths


def test_fork_servers_that_keep_dying_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "Runner", Dying)
    monkeypatch.setattr(machine, "warm_up", lambda: None)
    Dying.left = machine.TRIES
    with pytest.raises(UserError, match=r"died 3 times; if memory is short, .* type the command again to resume"):
        machine.new_worker(spare_core=False)


class Pipe:
    """What a worker sent, in order."""

    def __init__(self, *sent: tuple[int, Event]) -> None:
        self.sent = list(sent)

    def poll(self) -> bool:
        return bool(self.sent)

    def recv(self) -> tuple[int, Event]:
        return self.sent.pop(0)


def test_a_warning_that_comes_after_its_run_is_one_of_the_others() -> None:
    first, second = (PlannedRun((f"seed={seed}",), "fedavg") for seed in range(2))
    worker = object.__new__(machine.Runner)
    worker.runs = {7: first, 8: second}
    ended, late = Ended(Outcome(Ending.FINISHED)), Said("late")
    worker.connection = Pipe((8, ended), (8, late), (7, ended), (8, late))  # type: ignore[assignment]
    assert worker.hear() == [(second, ended), (first, late), (first, ended)]
    assert worker.runs == {}
