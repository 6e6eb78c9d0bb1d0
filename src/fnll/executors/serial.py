"""The definition of correct: one client after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fnll.errors import require_integer
from fnll.executors.jobs import perform
from fnll.executors.numerics import limit_threads
from fnll.scenario.scenario import Scenario
from fnll.types import CPU, Call, Update


@dataclass
class Serial:
    """Clients one after the other."""

    scenario: Scenario
    device: torch.device = CPU
    threads: int = 1
    exact = True

    def __post_init__(self) -> None:
        require_integer("executor.threads", self.threads, 1, "the torch threads of one process")
        limit_threads(self.threads)

    def map(self, calls: Sequence[Call]) -> list[Update]:
        return [perform(self.scenario, call, self.device) for call in calls]

    def close(self) -> None:
        """Nothing to release."""
