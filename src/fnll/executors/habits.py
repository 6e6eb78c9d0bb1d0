"""What an executor learns about the losses it meets: which can be vectorised, padded and traced, and how."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from fnll.executors.program import OFTEN, Programs

REMEMBERED = 1024  # kinds that were met last: a method may make its loss anew in every round, a kind each time


class NotTogetherError(Exception):
    """Why requests have to be met one by one, found out when they were first met together."""


class DifferentNumbersError(Exception):
    """The loss cannot do with numbers that differ between lanes: it decides by them."""


@dataclass(eq=False)
class Kind:
    """What was learned of requests that are alike. It stands for their key, which takes longer to hash."""

    number: int  # its short name
    alone: str | None = None  # why they are met one by one, if they are
    strict: bool = False  # whether lanes must have equal numbers
    unpadded: bool = False  # whether the loss counts padding
    times: int = 0  # that predictions were made together

    def doubts(self) -> bool:
        """Whether predictions made together are to be compared this time: ten times, then every tenth."""
        self.times += 1
        return self.times <= OFTEN or self.times % OFTEN == 0


class Habits:
    """What an executor has learned about the losses it has met."""

    def __init__(self) -> None:
        self.programs = Programs()
        self._kinds: OrderedDict[Hashable, Kind] = OrderedDict()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._kinds)

    def of(self, key: Hashable) -> Kind:
        """What is known of requests with this key."""
        if isinstance(key, Kind):
            return key
        kind = self._kinds.pop(key, None) or Kind(next(self._numbers))
        self._kinds[key] = kind
        if len(self._kinds) > REMEMBERED:
            self._kinds.popitem(last=False)
        return kind
