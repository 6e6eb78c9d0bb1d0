"""How a client's job is done: its data and randomness set up, its requests met, its result stamped."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from fnll.errors import NotFiniteError
from fnll.local import Asking, Fit, Predict, Request, Result, Trained, Training
from fnll.scenario.scenario import Scenario
from fnll.seeding import Streams, lent
from fnll.system.notices import Notice, repeat
from fnll.tools import TwoComponents, predict, two_component_gmm
from fnll.tools.finite import NOT_NUMERICAL, beyond_numbers
from fnll.training import fit
from fnll.types import Call, Client, Update

Answer = Trained | Tensor | TwoComponents


def perform(scenario: Scenario, call: Call, device: torch.device) -> Update:
    """Do one client's job: pure in (message, data, memory, seed). Shared by every exact executor."""
    with lent(device):
        return finished(Started(scenario, call, device)).update


def finished(job: Started) -> Started:
    """Do what is left of a job, one request after the other."""
    while job.request is not None:
        job.resume(job.alone())
    return job


def met(request: Request) -> Answer:
    """A request met by itself: what it means."""
    if isinstance(request, Fit):
        return fit(request)
    if isinstance(request, Predict):
        net, client = request.net, request.client
        return predict(net.to(client.device), client, request.augment, request.size)
    return two_component_gmm(
        request.values,
        seed=request.seed,
        reg_covar=request.reg_covar,
        tol=request.tol,
        max_iter=request.max_iter,
    )


def answered(asking: Asking[Result]) -> Result:
    """What a part of a job comes to, its requests met one by one."""
    try:
        request = next(asking)
        while True:
            request = asking.send(met(request))
    except StopIteration as end:
        result: Result = end.value
        return result


class Started:
    """A client's job as far as it has come: it waits for its `request`, or has its `update`.

    The global generators (dropout and friends draw from them) are the job's own while it is at work: jobs are started
    and resumed where these are `lent`.
    """

    def __init__(
        self,
        scenario: Scenario,
        call: Call,
        device: torch.device,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.scenario, self.call = scenario, call
        self._origin = scenario, call, device, around
        self._around = around  # entered whenever the job is at work
        self.client: Client = scenario.client(
            call.client, t=call.t, memory=call.memory, labels=call.labels, seed=call.seed, device=device
        )
        self.request: Request | None = None
        self._trained: Trained | None = None
        self._update: Update | None = None
        self._streams = Streams(call.seed, device)
        self._training: Training | None = None
        with self._at_work():
            outcome = call.job(self.client, **call.message)
            if isinstance(outcome, Generator):
                self._training = outcome
                self._ask(None)
            else:
                self._end(outcome)

    @property
    def update(self) -> Update:
        if self._update is None:
            raise RuntimeError(f"job {self.call.name} still waits for its {type(self.request).__name__}")
        return self._update

    def again(self) -> Started:
        """The same job from its beginning."""
        return Started(*self._origin)

    def resume(self, answer: Answer) -> None:
        """Go on with the answer, to the next request or to the end."""
        if isinstance(answer, Trained):
            self._trained = answer
        with self._at_work():
            self._ask(answer)

    @property
    def around(self) -> Callable[[], AbstractContextManager[None]]:
        """What is entered whenever something is done for this job alone."""
        return self._around

    def hear(self, notices: Sequence[Notice]) -> None:
        """Take note of what was warned of in work done for several jobs, this one among them."""
        if notices:
            with self._around():
                for notice in notices:
                    repeat(notice)

    def alone(self) -> Answer:
        """Meet the request as a part of this job."""
        assert self.request is not None
        with self._at_work():
            return met(self.request)

    def _ask(self, answer: Answer | None) -> None:
        assert self._training is not None
        try:
            request = next(self._training) if answer is None else self._training.send(answer)
        except StopIteration as end:
            self.request = None
            self._end(end.value)
        else:
            if not isinstance(request, Request):
                raise TypeError(f"a job yields Fit(module, client), Predict or Split, got {type(request).__name__}")
            self.request = request

    def _end(self, update: object) -> None:
        if not isinstance(update, Update):
            raise TypeError(f"a job returns an Update, got {type(update).__name__}")
        size = len(self.client) if update.size is None else update.size
        self._update = replace(update, client=self.client.id, size=size)
        self._streams.end()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        try:
            with self._around():
                self._streams.take()
                yield
        except Exception as error:
            place = f"client {self.call.client}, round {self.call.t}, job {self.call.name}"
            if self._lost_its_numbers(error):
                raise NotFiniteError(f"{type(error).__name__}: {error}; {place}") from error
            error.add_note(place)
            raise

    def _lost_its_numbers(self, error: Exception) -> bool:
        """Whether a job failed over networks whose weights are not finite: sent to it, being trained, or trained."""
        if isinstance(error, (NotFiniteError, *NOT_NUMERICAL)):
            return False
        sent = [part for part in self.call.message.values() if isinstance(part, Mapping)]
        network = self.request.module.net if isinstance(self.request, Fit) else getattr(self.request, "net", None)
        asked = None if network is None else network.state_dict()
        return beyond_numbers(sent, asked, self._trained.weights if self._trained else None)
