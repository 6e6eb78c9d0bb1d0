"""The definition of correct: one client after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fnll.errors import require_integer
from fnll.executors.numerics import limit_threads
from fnll.scenario.scenario import Scenario
from fnll.seeding import scoped
from fnll.types import CPU, Call, Update


def perform(scenario: Scenario, call: Call, device: torch.device) -> Update:
    """Do one client's job: pure in (message, data, memory, seed). Shared by every exact executor."""
    client = scenario.client(
        call.client, t=call.t, memory=call.memory, labels=call.labels, seed=call.seed, device=device
    )
    try:
        with scoped(call.seed, device):  # dropout and friends use the global generators
            update = call.job(client, **call.message)
    except Exception as error:
        error.add_note(f"client {call.client}, round {call.t}, job {call.name}")
        raise
    return replace(update, client=client.id, size=len(client) if update.size is None else update.size)


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
