"""What an executor learns about the losses it meets: which can be vectorised, padded and traced, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from fnll.executors.program import Programs

OFTEN = 10  # trainings of a kind before its traced steps are compared only now and then


class NotTogetherError(Exception):
    """Why clients must train alone, found out in their first step."""


class DifferentNumbersError(Exception):
    """The loss cannot do with numbers that differ between lanes: it decides by them."""


@dataclass
class Habits:
    """What an executor has learned about the losses it has met."""

    alone: dict[type, str] = field(default_factory=dict)  # modules that need a step of their own, and why
    strict: set[Hashable] = field(default_factory=set)  # kinds whose lanes must have equal numbers
    unpadded: set[Hashable] = field(default_factory=set)  # kinds whose losses count padding
    programs: Programs = field(default_factory=Programs)
    checked: set[Hashable] = field(default_factory=set)  # kinds of steps whose traced form was ever compared
    numbers: dict[Hashable, int] = field(default_factory=dict)  # long keys by short ones
    trainings: Counter[int] = field(default_factory=Counter)  # of blocks of each kind

    def doubts(self, kind: int) -> bool:
        """Whether traced steps of this kind are to be compared once more: in ten trainings, then in every tenth."""
        self.trainings[kind] += 1
        return self.trainings[kind] <= OFTEN or self.trainings[kind] % OFTEN == 0

    def number(self, key: Hashable) -> int:
        """A short name of `key`."""
        return self.numbers.setdefault(key, len(self.numbers))
