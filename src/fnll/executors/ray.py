"""Clients on a Ray cluster: one machine, several, or a batch system's allocation; see docs/clusters.md."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fnll.errors import UserError, require
from fnll.executors.agenda import Agenda, Answer
from fnll.executors.arena import Packer, Ticket, unpack
from fnll.executors.numerics import Numerics, Setup, limit_threads
from fnll.executors.serial import Threads
from fnll.executors.worker import HEARD, answer, noting, pack
from fnll.scenario.scenario import Scenario
from fnll.settings import checked
from fnll.system.processes import usable_cores
from fnll.types import Call, Update

log = logging.getLogger(__name__)

TIMEOUT = 60.0  # seconds without any worker after which the log says what the run waits for


class Ray:
    """Clients on Ray actors that each hold the scenario; bit-identical to `Serial` on the same kind of machine.

    The scenario is put into the object store once, a map's messages once per map. An actor that dies, with its machine
    or alone, is replaced and its call repeated. `address=None` starts Ray on this machine and stops it in the end;
    `workers=None` is as many as the cluster has room for. `num_gpus` may be a fraction: then workers share a device.
    """

    exact = True

    @checked("executor")
    def __init__(
        self,
        scenario: Scenario,
        address: str | None = None,
        workers: Annotated[
            Annotated[int, Field(ge=1)] | None,
            Field(
                title="a whole number of at least 1",
                description="Ray actors; null is as many as the cluster has room for",
            ),
        ] = None,
        threads: Threads = 1,
        num_cpus: Annotated[float, Field(gt=0, description="cores that Ray sets aside for each worker")] = 1,
        num_gpus: Annotated[float, Field(ge=0, description="GPUs for each worker; 0.25 lets four share one")] = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(torch.device(device).type)  # Ray shows each actor its own GPU as the first
        require(
            self.device.type != "cuda" or num_gpus > 0,
            "executor.num_gpus must be greater than 0 for device=cuda, got 0; 0.25 lets four workers share a GPU",
        )
        self.scenario, self.address, self.workers, self.threads = scenario, address, workers, threads
        self.resources = {"num_cpus": num_cpus, "num_gpus": num_gpus}
        self._ray = _import_ray()
        limit_threads(threads)  # for the server's part of a method
        self._init_payload: tuple[Any, ...] | None = None
        self._idle: list[Any] = []
        self._asked: dict[Any, Any] = {}  # actors that have not yet said that they are there, by the reference to that
        self._started_ray = self._closed = False

    def map(self, calls: Sequence[Call]) -> list[Update]:
        """Do the calls, largest clients first, each on the first actor that is free."""
        if self._closed:
            raise RuntimeError("this executor was closed; make a new one")
        if not calls:
            return []
        self._connect()
        agenda = Agenda(calls, self.scenario.sizes)
        packer = Packer()
        tickets = [pack(packer, call) for call in calls]
        messages = self._ray.put(packer.array())
        busy: dict[Any, tuple[Any, int]] = {}
        self._ping_idle()
        try:
            while agenda.open:
                self._spawn(agenda.waiting + len(busy), len(busy))
                while self._idle and agenda.waiting:
                    actor, i = self._idle.pop(), agenda.take()
                    busy[actor.perform.remote(messages, tuple(tickets[i]))] = actor, i
                done, _ = self._ray.wait([*busy, *self._asked], num_returns=1, timeout=None if busy else TIMEOUT)
                if not done:
                    log.warning("waiting for room in the Ray cluster: a worker needs %s", _listed(self.resources))
                for answered in done:
                    self._settle(answered, agenda, busy)
        finally:
            for actor, _ in busy.values():  # after an error or Ctrl-C nobody waits for these answers
                self._ray.kill(actor)
        return agenda.results()

    def close(self) -> None:
        """Let the actors go, and Ray too if it was started here."""
        if not self._closed and self._ray.is_initialized():
            for actor in [*self._idle, *self._asked.values()]:
                self._ray.kill(actor)
            if self._started_ray:
                self._ray.shutdown()
        self._idle, self._asked, self._init_payload, self._closed = [], {}, None, True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _settle(self, done: Any, agenda: Agenda, busy: dict[Any, tuple[Any, int]]) -> None:
        """Take one answer: to a call, or to the question whether an actor is there."""
        if done in self._asked:
            actor = self._asked.pop(done)
            with noting("a Ray worker did not start: every machine needs the same fnll, torch and Python as this one"):
                self._ray.get(done)
            self._idle.append(actor)
            return
        actor, i = busy[done]
        try:
            array, ticket = self._ray.get(done)
        except _losses(self._ray) as error:
            self._ray.kill(actor)
            del busy[done]
            agenda.repeat(i, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
            return
        reply: Answer = unpack(as_tensor(array), Ticket(*ticket), own=True)
        agenda.settle(i, reply)
        self._idle.append(busy.pop(done)[0])

    def _ping_idle(self) -> None:
        """Ask the idle actors whether they are there, so that no call is sent to one that died between two maps."""
        asked = {actor.ready.remote(): actor for actor in self._idle}
        self._idle = []
        for reference, actor in asked.items():
            try:
                self._ray.get(reference)
            except _losses(self._ray):
                log.warning("a Ray worker died between two rounds; another takes its place")
            else:
                self._idle.append(actor)

    def _spawn(self, wanted: int, busy: int) -> None:
        """Start actors until there are `wanted`, or as many as there may be; some may have to wait for room."""
        assert self.workers is not None
        assert self._init_payload is not None
        actor = self._ray.remote(Actor).options(max_restarts=0, max_task_retries=0, **self.resources)
        for _ in range(min(self.workers, wanted) - busy - len(self._idle) - len(self._asked)):
            spawned = actor.remote(*self._init_payload)
            self._asked[spawned.ready.remote()] = spawned

    def _connect(self) -> None:
        """Find or start Ray, and put the scenario where every actor can reach it."""
        if self._init_payload is not None:
            return
        if not self._ray.is_initialized():
            self._init()
        room = capacity(self._ray.nodes(), **self.resources)
        if self.workers is None:
            require(room > 0, f"the Ray cluster has no machine with {_listed(self.resources)}; ask for less per worker")
            self.workers = room
        elif self.workers > room:
            log.warning("executor.workers=%d, but the Ray cluster has room for %d now", self.workers, room)
        packer = Packer()
        ticket = packer.add(self.scenario)
        setup = Setup(self.device, self.threads, Numerics.of_this_process())
        self._init_payload = self._ray.put(packer.array()), tuple(ticket), setup

    def _init(self) -> None:
        quiet = {"logging_level": logging.WARNING}
        if self.address is not None:
            try:
                self._ray.init(address=self.address, **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"executor.address={self.address}: no Ray cluster answers there ({error}); start one with "
                    "`ray start --head`, or type executor.address=null to use this machine"
                ) from error
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        cores = max(usable_cores(), math.ceil((self.workers or 0) * self.resources["num_cpus"]))
        self._ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        self._started_ray = True


class Actor:
    """A process of the cluster that holds the scenario, in place in the object store, and answers calls."""

    def __init__(self, scenario: np.ndarray, ticket: tuple[int, int], setup: Setup) -> None:
        setup.apply()
        logging.getLogger().addHandler(HEARD)
        self.scenario: Scenario = unpack(as_tensor(scenario), Ticket(*ticket), own=False)
        self.device = setup.device

    def ready(self) -> bool:
        return True

    def perform(self, messages: np.ndarray, ticket: tuple[int, int]) -> tuple[np.ndarray, tuple[int, int]]:
        """The packed reply to the call that `ticket` names."""
        packer, reply = answer(
            self.scenario, lambda: unpack(as_tensor(messages), Ticket(*ticket), own=True), self.device
        )
        return packer.array(), (reply.start, reply.stop)


def as_tensor(array: np.ndarray) -> Tensor:
    """The array's memory as a tensor. What lies in the object store is read-only; nothing here writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def capacity(nodes: Iterable[Mapping[str, Any]], num_cpus: float, num_gpus: float) -> int:
    """How many workers fit into a cluster: none is split over two machines, no share of a GPU over two devices."""
    room = 0
    for node in nodes:
        has = node["Resources"] if node["Alive"] else {}
        fits = math.floor(has.get("CPU", 0) / num_cpus)
        if num_gpus > 0:
            gpus = has.get("GPU", 0)
            fits = min(fits, int(gpus) * math.floor(1 / num_gpus) if num_gpus < 1 else math.floor(gpus / num_gpus))
        room += fits
    return room


def _listed(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{name}={value:g}" for name, value in resources.items() if value)


def _losses(ray: ModuleType) -> tuple[type[Exception], ...]:
    """The errors that mean: the process or the machine is gone, the call itself is not to blame."""
    errors = ray.exceptions
    return errors.RayActorError, errors.ObjectLostError, errors.OutOfMemoryError, errors.NodeDiedError


def _import_ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise UserError("executor=ray needs Ray, which is not installed; type: pip install 'fnll[ray]'") from error
    return ray
