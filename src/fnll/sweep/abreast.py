"""Runs advanced side by side in one process, so that what their clients train is stacked across runs.

Each run is what it is alone, with its own folder, checkpoints and failures; it sleeps where it asks for its clients'
work (`fnll.executors.suspended`). When all of them sleep, their requests are met together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fnll.executors.jobs import Started
from fnll.executors.numerics import limit_threads
from fnll.executors.suspended import Inquiry, Suspended
from fnll.executors.vectorised import Stacker, Vectorised, in_words
from fnll.federation import Executor
from fnll.harness.prepare import Run
from fnll.harness.warned import Ears
from fnll.scenario.scenario import Scenario
from fnll.seeding import lent
from fnll.sweep.events import Ended, Outcome, Said, Send
from fnll.sweep.grid import PlannedRun
from fnll.sweep.perform import perform
from fnll.types import CPU, Call, Update

Answer = list[Update] | Exception


@dataclass(eq=False)
class RunAbreast:
    """One of the runs."""

    send: Send
    ears: Ears = field(default_factory=Ears)
    scenario: Scenario | None = None  # known when the run asks for the first time
    device: torch.device = CPU
    threads: int = 1
    chunk: int = 1
    calls: Sequence[Call] | None = None

    def executor(self, run: Run, inquiry: Inquiry) -> Executor:
        """What the run asks for its clients' work: us, or its own executor if that stacks nothing."""
        own = run.executor()
        if not isinstance(own, Vectorised):
            return own
        self.scenario, self.device, self.threads, self.chunk = run.scenario, run.device, own.threads, own.chunk
        return inquiry

    def started(self, call: Call) -> Started:
        assert self.scenario is not None
        return Started(self.scenario, call, self.device, self.ears.open)


class Abreast:
    """The runs of one process."""

    def __init__(self) -> None:
        self.stacker = Stacker()
        self._members: dict[RunAbreast, Suspended[Outcome]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def add(self, planned: PlannedRun, send: Send) -> None:
        """Let a run join, and go to where it first asks for its clients' work."""
        member = RunAbreast(send)

        def body(inquiry: Inquiry) -> Outcome:
            return perform(planned, send, spare_core=False, executor_of=lambda run: member.executor(run, inquiry))

        self._members[member] = Suspended(body, exact=False, around=member.ears.open)
        self._advance(member, None)

    def turn(self) -> None:
        """Meet what every run has asked for, and advance each to its next request or to its end."""
        asking = list(self._members)
        if asking:
            limit_threads(asking[0].threads)  # the run's own limit was set in its own thread
        for member, answer in self._answers(asking).items():
            self._advance(member, answer)

    def close(self) -> None:
        """Give up the runs that are not over, each where it stands."""
        for run in self._members.values():
            run.close()
        self._members = {}

    def _advance(self, member: RunAbreast, answer: Answer | None) -> None:
        run = self._members[member]
        member.calls = run.advance(answer)
        if member.calls is None:
            del self._members[member]
            member.send(Ended(run.result))

    def _answers(self, members: Sequence[RunAbreast]) -> dict[RunAbreast, Answer]:
        """What each is told; where something fails, each is answered by itself, so that only its own failure is."""
        try:
            return dict(self._together(members))
        except Exception as error:
            if len(members) == 1:
                return {members[0]: error}
        return {one: answer for member in members for one, answer in self._answers([member]).items()}

    def _together(self, members: Sequence[RunAbreast]) -> dict[RunAbreast, list[Update]]:
        asked = [(member, call) for member in members for call in member.calls or ()]
        answers: dict[RunAbreast, list[Update]] = {member: [] for member in members}
        size = max((member.chunk for member in members), default=1)
        for start in range(0, len(asked), size):
            part = asked[start : start + size]
            known = len(self.stacker.alone)
            with lent(part[0][0].device):
                jobs = [member.started(call) for member, call in part]
                self.stacker.done(jobs)
            for (name, reason), who in list(self.stacker.alone.items())[known:]:
                text = in_words(name, reason)
                next(member for member, call in part if id(call) == who).send(Said(text, text))
            for (member, _), job in zip(part, jobs, strict=True):
                answers[member].append(job.update)
        return answers
