"""What a measurement says: times, ratios with what they should be, and facts; as objects and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Timing:
    """The same work done several times."""

    samples: tuple[int, ...]  # of each repetition; 0 if the work is not counted in samples
    wall: tuple[float, ...]  # seconds
    cpu: tuple[float, ...]  # of this process alone: steadier than `wall` on a busy machine, blind to workers

    @property
    def best(self) -> float:
        """Seconds of the least disturbed repetition, which all ratios use."""
        return min(self.wall)

    @property
    def rate(self) -> float:
        """Samples per second of the least disturbed repetition."""
        return max(samples / wall for samples, wall in zip(self.samples, self.wall, strict=True))

    def record(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "samples": list(self.samples),
            "wall_s": list(self.wall),
            "cpu_s": list(self.cpu),
            "best_s": self.best,
            "median_s": statistics.median(self.wall),
            "samples_per_s": self.rate or None,
        }


@dataclass(frozen=True)
class Claim:
    """A number that stands for the whole measurement, and the bound that it should keep, if there is one."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept; None if there is none."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return self.value <= self.at_most if self.at_most is not None else None

    def record(self) -> dict[str, Any]:
        """In JSON's types."""
        bounds = {"at_least": self.at_least, "at_most": self.at_most}
        return {"name": self.name, "value": self.value, "unit": self.unit, **bounds, "holds": self.holds}


@dataclass(frozen=True)
class SuiteResult:
    """One suite's outcome."""

    suite: str
    words: tuple[str, ...]  # the settings it was measured with
    timings: Mapping[str, Timing] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # further numbers, in JSON's types

    def record(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "settings": list(self.words),
            "timings": {name: timing.record() for name, timing in self.timings.items()},
            "claims": [claim.record() for claim in self.claims],
            "facts": dict(self.facts),
        }


def faster(timings: Mapping[str, Timing], one: str, other: str) -> float:
    """How many times the rate of `other` `one` has; where there are no samples, of the same work."""
    left, right = timings[one], timings[other]
    return left.rate / right.rate if left.rate and right.rate else right.best / left.best
