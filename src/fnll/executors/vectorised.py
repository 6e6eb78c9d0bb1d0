"""Many clients in one vectorised call: the trainings that jobs ask for are stacked where they are alike.

Close to `Serial`, not bit-identical: batched kernels group sums differently, so `exact` is False and `numerics:
vectorised` is part of a run's identity. It pays for small networks, whose steps are bound by overhead. Whatever
cannot be vectorised is done as `Serial` does it, with one line in the log.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch

from fnll.errors import require_integer
from fnll.executors.jobs import Started, finished
from fnll.executors.lanes import Lane, lane_of
from fnll.executors.numerics import limit_threads
from fnll.executors.together import NotTogetherError, train_together
from fnll.fit import fit
from fnll.scenario.scenario import Scenario
from fnll.types import CPU, Call, Update

log = logging.getLogger(__name__)


@dataclass
class Vectorised:
    """Clients whose trainings are alike train together, at most `chunk` at a time."""

    scenario: Scenario
    device: torch.device = CPU
    threads: int = 1
    chunk: int = 64
    alone: dict[type, str] = field(default_factory=dict)  # modules that turned out to need a step of their own, and why
    said: set[str] = field(default_factory=set)
    exact = False
    numerics = "vectorised"
    revision = 3  # raised by every change of its numbers; `fnll.NUMBERS` is for those of the exact executors

    def __post_init__(self) -> None:
        require_integer("executor.threads", self.threads, 1, "the torch threads of one process")
        require_integer("executor.chunk", self.chunk, 1, "clients that are trained in one vectorised call")
        limit_threads(self.threads)

    def map(self, calls: Sequence[Call]) -> list[Update]:
        parts = [calls[start : start + self.chunk] for start in range(0, len(calls), self.chunk)]
        return [update for part in parts for update in self._done(part)]

    def close(self) -> None:
        """Nothing to release."""

    def _done(self, calls: Sequence[Call]) -> list[Update]:
        jobs = [Started(self.scenario, call, self.device) for call in calls]
        while asking := [i for i, job in enumerate(jobs) if job.request is not None]:
            groups: dict[Hashable, list[tuple[int, Lane]]] = defaultdict(list)
            for i in asking:
                lane = self._lane(jobs[i])
                if isinstance(lane, Lane):
                    groups[lane.key].append((i, lane))
                else:
                    self._say(jobs[i].call, lane)
                    jobs[i].resume(jobs[i].alone(fit))
            for group in groups.values():
                self._train(jobs, group)
        return [job.update for job in jobs]

    def _lane(self, job: Started) -> Lane | str:
        assert job.request is not None
        known = self.alone.get(type(job.request.module))
        return known if known is not None else lane_of(job.request)

    def _train(self, jobs: list[Started], group: Sequence[tuple[int, Lane]]) -> None:
        """Meet the requests of a group; jobs whose trainings do not go together start again, each by itself."""
        if len(group) == 1:
            ((i, _),) = group
            jobs[i].resume(jobs[i].alone(fit))
            return
        try:
            results = train_together([lane for _, lane in group])
        except NotTogetherError as reason:
            self.alone[type(group[0][1].module)] = str(reason)
            self._say(jobs[group[0][0]].call, str(reason))
            for i, _ in group:
                jobs[i] = finished(Started(self.scenario, jobs[i].call, self.device))
            return
        for (i, _), trained in zip(group, results, strict=True):
            jobs[i].resume(trained)

    def _say(self, call: Call, reason: str) -> None:
        if call.name not in self.said:
            self.said.add(call.name)
            log.info("executor=vectorised does job %s one client at a time: %s", call.name, reason)
