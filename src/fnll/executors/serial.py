"""The definition of correct: one client after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from fnll.executors.jobs import perform
from fnll.executors.numerics import limit_threads
from fnll.scenario.scenario import Scenario
from fnll.settings import check_fields
from fnll.types import CPU, Call, Update

Threads = Annotated[int, Field(ge=1, le=1024, description="the torch threads of one process")]


@dataclass
class Serial:
    """Clients one after the other."""

    scenario: Scenario
    device: torch.device = CPU
    threads: Threads = 1
    exact = True

    def __post_init__(self) -> None:
        check_fields(self, "executor")
        limit_threads(self.threads)

    def map(self, calls: Sequence[Call]) -> list[Update]:
        return [perform(self.scenario, call, self.device) for call in calls]

    def close(self) -> None:
        """Nothing to release."""
