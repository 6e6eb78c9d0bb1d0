"""What is said about the runs of a sweep while they go on, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fnll.harness.status import Status


class Ending(StrEnum):
    """How a run of a sweep ended."""

    FINISHED = Status.FINISHED
    KNOWN = "finished before"
    DECLINED = Status.DECLINED
    FAILED = Status.FAILED
    BUSY = "busy elsewhere"  # another process holds it: to be asked for again
    BLOCKED = "blocked"  # the store cannot be written: no other run can be either


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    kind: Ending
    detail: str = ""  # why, if it did not finish; `diverged` if it did so early
    accuracy: float | None = None  # mean of the last ten evaluations
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()  # what it warned of, in words that runs share


@dataclass(frozen=True)
class Begun:
    """A run has been prepared and trains from now on."""

    folder: str
    step: int
    rounds: int


@dataclass(frozen=True)
class Evaluated:
    """A step of the grid was evaluated."""

    step: int
    accuracy: float


@dataclass(frozen=True)
class Said:
    """A run has a warning for the user."""

    text: str
    about: str = ""  # the same in words that runs share


@dataclass(frozen=True)
class Ended:
    """A run is over."""

    outcome: Outcome


@dataclass(frozen=True)
class Lost:
    """The process that did the run died."""

    reason: str


Event = Begun | Evaluated | Said | Ended | Lost
Send = Callable[[Event], None]
