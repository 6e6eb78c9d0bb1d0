"""Many clients in one vectorised call: what their jobs ask for is stacked where it is alike.

Close to `Serial`, not bit-identical: batched kernels group sums differently, so `exact` is False and `numerics:
vectorised` is part of a run's identity. It pays for small networks, whose steps are bound by overhead. Whatever
cannot be vectorised is done as `Serial` does it, with one line in the log.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, TypeVar

import torch
from pydantic import Field

from fnll.executors.habits import DifferentNumbersError, Habits, NotTogetherError
from fnll.executors.jobs import Answer, Started, finished
from fnll.executors.lanes import Lane, lane_of
from fnll.executors.mixtures import split_together
from fnll.executors.numerics import limit_threads
from fnll.executors.predictions import kind_of, predict_together
from fnll.executors.serial import Threads
from fnll.executors.together import train_together
from fnll.local import Fit, Predict, Split
from fnll.scenario.scenario import Scenario
from fnll.seeding import lent
from fnll.settings import check_fields
from fnll.system.notices import Notice, gathered
from fnll.types import CPU, Call, Update

Asked = TypeVar("Asked", Predict, Split)

log = logging.getLogger(__name__)


def in_words(job: str, reason: str) -> str:
    """The one line about a job that is not stacked."""
    return f"executor=vectorised does job {job} one client at a time: {reason}"


class Stacker:
    """Does jobs, of one run or of several, and stacks what they ask for. Remembers which losses take what."""

    def __init__(self) -> None:
        self.habits = Habits()
        self.alone: dict[tuple[str, str], int] = {}  # jobs done one client at a time, and why, by the call's `id` then

    def done(self, jobs: list[Started]) -> None:
        """Bring all jobs to their ends, in place."""
        owners: dict[int, Hashable] = {}  # good for this call, while the jobs keep them alive
        while asking := [i for i, job in enumerate(jobs) if job.request is not None]:
            fits: dict[Hashable, list[tuple[int, Lane]]] = defaultdict(list)
            predictions: dict[Hashable, list[tuple[Started, Predict]]] = defaultdict(list)
            splits: dict[Hashable, list[tuple[Started, Split]]] = defaultdict(list)
            for i in asking:
                request = jobs[i].request
                assert request is not None
                if isinstance(request, Predict):
                    predictions[kind_of(request)].append((jobs[i], request))
                elif isinstance(request, Split):
                    splits[request.reg_covar, request.tol, request.max_iter].append((jobs[i], request))
                elif isinstance(lane := self._lane(jobs[i], request, owners), Lane):
                    strict = self.habits.of(lane.key).strict
                    fits[lane.key, lane.numbers if strict else None].append((i, lane))
                else:
                    self._say(jobs[i].call, lane)
                    jobs[i].resume(jobs[i].alone())
            for kind, members in splits.items():
                self._answer(kind, members, split_together)
            for kind, asked in predictions.items():
                self._answer(kind, asked, partial(self._predict, kind))
            self._say_of_strangers(jobs, fits.values())
            for group in fits.values():
                self._train(jobs, group)

    def _predict(self, kind: Hashable, requests: Sequence[Predict]) -> Sequence[Answer]:
        return predict_together(requests, doubts=self.habits.of(kind).doubts())

    def _lane(self, job: Started, request: Fit, owners: dict[int, Hashable]) -> Lane | str:
        try:
            with job.around():
                lane = lane_of(request, owners)
        except Exception as error:
            return _reason(error)
        if isinstance(lane, str):
            return lane
        kind = self.habits.of(lane.key)
        return kind.alone or replace(lane, key=kind, around=job.around)

    def _answer(
        self,
        kind: Hashable,
        asked: Sequence[tuple[Started, Asked]],
        together: Callable[[Sequence[Asked]], Sequence[Answer | None]],
    ) -> None:
        """Meet requests of one kind together; by themselves those that this leaves open, and all if there is no way."""
        answers: Sequence[Answer | None] = [None] * len(asked)
        notices: Sequence[Notice] = ()
        reason = None
        if len(asked) > 1 and kind is not None and self.habits.of(kind).alone is None:
            try:
                with gathered() as found:
                    answers = together([request for _, request in asked])
                notices = found
            except Exception as error:
                reason = _reason(error)
        for (job, _), answer in zip(asked, answers, strict=True):
            job.hear(() if answer is None else notices)
            job.resume(job.alone() if answer is None else answer)  # fails here if it was not the company's fault
        if reason is not None:
            self._leave(kind, asked[0][0].call, reason)

    def _train(self, jobs: list[Started], group: Sequence[tuple[int, Lane]]) -> None:
        """Meet the requests of a group; jobs whose trainings do not go together start again, each by itself."""
        if len(group) == 1:
            ((i, _),) = group
            jobs[i].resume(jobs[i].alone())
            return
        key = group[0][1].key
        try:
            with gathered() as notices:
                results = train_together([lane for _, lane in group], self.habits)
        except DifferentNumbersError:
            self.habits.of(key).strict = True  # they still wait, and are grouped by their numbers next time
            return
        except Exception as error:
            for i, _ in group:
                jobs[i] = finished(jobs[i].again())  # fails here if it was not the company's fault
            self._leave(key, jobs[group[0][0]].call, _reason(error))
            return
        for (i, _), trained in zip(group, results, strict=True):
            jobs[i].hear(notices)
            jobs[i].resume(trained)

    def _say_of_strangers(self, jobs: Sequence[Started], groups: Collection[Sequence[tuple[int, Lane]]]) -> None:
        """Say so if several clients of one job ask in vain, since each brings something of its own, like a closure."""
        alone: dict[tuple[int, str], list[Call]] = defaultdict(list)
        stacked: set[tuple[int, str]] = set()
        for group in groups:
            for call, asker in ((jobs[i].call, (id(jobs[i].scenario), jobs[i].call.name)) for i, _ in group):
                if len(group) == 1:
                    alone[asker].append(call)
                else:
                    stacked.add(asker)
        for asker, calls in alone.items():
            if len(calls) > 1 and asker not in stacked:
                self._say(calls[0], "no two of its trainings are alike")

    def _leave(self, kind: Hashable, call: Call, reason: str) -> None:
        """From now on requests of this kind are met one by one."""
        self.habits.of(kind).alone = reason
        self._say(call, reason)

    def _say(self, call: Call, reason: str) -> None:
        if (call.name, reason) not in self.alone:
            self.alone[call.name, reason] = id(call)
            log.info(in_words(call.name, reason))


def _reason(error: Exception) -> str:
    if isinstance(error, NotTogetherError):
        return str(error)
    return f"it cannot be vectorised ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"


@dataclass
class Vectorised:
    """Clients whose trainings are alike train together, at most `chunk` at a time."""

    scenario: Scenario
    device: torch.device = CPU
    threads: Threads = 1
    chunk: Annotated[int, Field(ge=1, description="clients that are trained in one vectorised call")] = 64
    stacker: Stacker = field(default_factory=Stacker)
    exact = False
    numerics = "vectorised"
    revision = 8  # raised by every change of its numbers; `fnll.NUMBERS` is for those of the exact executors

    def __post_init__(self) -> None:
        check_fields(self, "executor")
        limit_threads(self.threads)

    @property
    def said(self) -> set[str]:
        """Jobs that turned out to be done one client at a time."""
        return {job for job, _ in self.stacker.alone}

    def map(self, calls: Sequence[Call]) -> list[Update]:
        updates: list[Update] = []
        for start in range(0, len(calls), self.chunk):
            with lent(self.device):
                jobs = [Started(self.scenario, call, self.device) for call in calls[start : start + self.chunk]]
                self.stacker.done(jobs)
            updates += [job.update for job in jobs]
        return updates

    def close(self) -> None:
        """Nothing to release."""
