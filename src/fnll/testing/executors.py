"""Executors that catch mistakes: reversed order, a process boundary without a process, and a suspicious one."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field

from fnll.executors import perform
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
