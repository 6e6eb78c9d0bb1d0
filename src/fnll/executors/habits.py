"""What an executor learns about the losses it meets: which can be vectorised, padded and traced, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from fnll.executors.program import Programs

OFTEN = 10  # times that requests of a kind are met before what is done together is compared only now and then


class NotTogetherError(Exception):
    """Why requests have to be met one by one, found out when they were first met together."""


class DifferentNumbersError(Exception):
    """The loss cannot do with numbers that differ between lanes: it decides by them."""


@dataclass
class Habits:
    """What an executor has learned about the losses it has met."""

    alone: dict[Hashable, str] = field(default_factory=dict)  # kinds of requests that are met one by one, and why
    strict: set[Hashable] = field(default_factory=set)  # kinds whose lanes must have equal numbers
    unpadded: set[Hashable] = field(default_factory=set)  # kinds whose losses count padding
    programs: Programs = field(default_factory=Programs)
    checked: set[Hashable] = field(default_factory=set)  # kinds of steps whose traced form was ever compared
    numbers: dict[Hashable, int] = field(default_factory=dict)  # long keys by short ones
    times: Counter[int] = field(default_factory=Counter)  # that each kind was met

    def doubts(self, kind: int) -> bool:
        """Whether what was done together is to be compared once more: ten times, then every tenth."""
        self.times[kind] += 1
        return self.times[kind] <= OFTEN or self.times[kind] % OFTEN == 0

    def number(self, key: Hashable) -> int:
        """A short name of `key`."""
        return self.numbers.setdefault(key, len(self.numbers))
