"""Executors that catch mistakes: reversed order, a process boundary without a process, and a suspicious one."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fnll.executors import perform
from fnll.federation import Executor
from fnll.scenario import Scenario
from fnll.testing.equality import canonical
from fnll.types import CPU, Call, Update


@dataclass
class Backwards:
    """Does the calls in reverse and returns the updates in request order."""

    scenario: Scenario
    exact = True

    def map(self, calls: Sequence[Call]) -> list[Update]:
        return [perform(self.scenario, call, CPU) for call in reversed(calls)][::-1]

    def close(self) -> None:
        """Nothing to release."""


@dataclass
class Roundtrip:
    """Pickles every call and every update: what crosses a process boundary, without a process."""

    scenario: Scenario
    exact = True

    def map(self, calls: Sequence[Call]) -> list[Update]:
        there = [pickle.loads(pickle.dumps(call)) for call in calls]
        return [pickle.loads(pickle.dumps(perform(self.scenario, call, CPU))) for call in there]

    def close(self) -> None:
        """Nothing to release."""


@dataclass
class Paranoid:
    """Looks at method, message, memory and data before and after each job, and does each job twice."""

    scenario: Scenario
    exact = True

    def map(self, calls: Sequence[Call]) -> list[Update]:
        return [self._watched(call) for call in calls]

    def _watched(self, call: Call) -> Update:
        before = self._everything(call)
        update = perform(self.scenario, call, CPU)
        for name, was in before.items():
            if self._everything(call)[name] != was:
                raise AssertionError(f"job {call.name} changed its {name} on client {call.client}, round {call.t}")
        if canonical(perform(self.scenario, call, CPU)) != canonical(update):
            raise AssertionError(f"job {call.name} gives another result when done again with the same inputs")
        return update

    def _everything(self, call: Call) -> dict[str, object]:
        owner = getattr(call.job, "__self__", None)
        return {
            "method": canonical(getattr(owner, "__dict__", None)),
            "message": canonical(call.message),
            "memory": canonical(call.memory),
            "labels": canonical(call.labels),
            "data": canonical([self.scenario.labels, *self.scenario.shards]),
        }

    def close(self) -> None:
        """Nothing to release."""


@dataclass
class Recording:
    """Serial, and remembers every call with its update."""

    scenario: Scenario
    seen: list[list[tuple[Call, Update]]] = field(default_factory=list)
    exact = True

    def map(self, calls: Sequence[Call]) -> list[Update]:
        updates = [perform(self.scenario, call, CPU) for call in calls]
        self.seen.append(list(zip(calls, updates, strict=True)))
        return updates

    def close(self) -> None:
        """Nothing to release."""


@dataclass
class Compared:
    """Serial, with another executor doing every call too; notes where the two do not tell the same."""

    scenario: Scenario
    other: Executor
    differences: list[str] = field(default_factory=list)
    exact = True

    def map(self, calls: Sequence[Call]) -> list[Update]:
        updates = [perform(self.scenario, call, CPU) for call in calls]
        for call, mine, theirs in zip(calls, updates, self.other.map(calls), strict=True):
            for part in ("weights", "report", "memory", "trace", "labels", "size"):
                if difference := apart(getattr(mine, part), getattr(theirs, part)):
                    self.differences.append(
                        f"job {call.name} on client {call.client}, round {call.t}: {part} {difference}"
                    )
        return updates

    def close(self) -> None:
        self.other.close()


def apart(mine: Any, theirs: Any) -> str | None:
    """In what two values differ by more than rounding and its consequences; None if in nothing."""
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        if mine.keys() != theirs.keys():
            return f"has {sorted(mine)} under one executor and {sorted(theirs)} under the other"
        parts = ((name, apart(mine[name], theirs[name])) for name in mine)
        return next((f"{name!r} {difference}" for name, difference in parts if difference), None)
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(mine) == len(theirs):
        return next((found for pair in zip(mine, theirs, strict=True) if (found := apart(*pair))), None)
    if mine is None or theirs is None or isinstance(mine, str):
        return None if mine == theirs else f"is {mine!r} under one executor and {theirs!r} under the other"
    left, right = torch.as_tensor(mine), torch.as_tensor(theirs)
    if left.shape != right.shape or left.dtype != right.dtype:
        forms = [f"{tuple(value.shape)} {value.dtype}" for value in (left, right)]
        return f"is {forms[0]} under one executor and {forms[1]} under the other"
    if left.is_floating_point():
        close = torch.isclose(left, right, rtol=1e-2, atol=1e-3, equal_nan=True)
    else:
        close = left == right
    # rounding may carry a sample or two over a threshold
    return None if int((~close).sum()) <= left.numel() // 10 else "differs between executors by more than rounding"
