"""Clients in worker processes on one machine."""

from __future__ import annotations

import logging
import multiprocessing
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Literal, Self

import torch
from pydantic import Field

from fnll.errors import UserError
from fnll.executors.agenda import Agenda, Answer
from fnll.executors.arena import Arena, Packer, Ticket
from fnll.executors.numerics import Numerics, Setup, limit_threads
from fnll.executors.serial import Threads
from fnll.executors.worker import noting, pack, post, serve
from fnll.scenario.scenario import Scenario
from fnll.settings import checked
from fnll.system.processes import GONE, usable_cores
from fnll.system.workers import WorkerProcess, dismiss, ready
from fnll.types import Call, Update

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

log = logging.getLogger(__name__)

Workers = Annotated[
    Annotated[int, Field(ge=1)] | None,
    Field(title="a whole number of at least 1", description="worker processes; null is one for every usable core"),
]

PRELOAD = ["fnll.executors.worker", "fnll.local", "torchmetrics", "sklearn.mixture"]  # once, in the fork server


class Pool:
    """Clients side by side in processes of their own; bit-identical to `Serial` with the same number of threads.

    Workers start when a map first needs them, and hold the scenario in shared memory. A worker that dies is replaced
    and its call repeated. `workers=None` is as many as the usable cores feed; `devices` are dealt out to them in turn.
    """

    exact = True

    @checked("executor")
    def __init__(
        self,
        scenario: Scenario,
        workers: Workers = None,
        threads: Threads = 1,
        device: torch.device | str = "cpu",
        devices: Sequence[str] = (),
        start_method: Annotated[
            Literal["forkserver", "spawn"] | None, Field(title="forkserver, spawn or null", description="null chooses")
        ] = None,
    ) -> None:
        self.scenario, self.threads, self.device = scenario, threads, torch.device(device)
        cores = usable_cores()
        self.workers = max(1, cores // threads) if workers is None else workers
        self.devices = _checked(devices, self.device)
        self.start_method = start_method or _start_method(self.device)
        if self.workers * threads > cores:
            log.warning("%d workers with %d threads each share %d usable cores", self.workers, threads, cores)
        limit_threads(threads)  # for the server's part of a method
        self._workers: dict[int, Worker] = {}
        self._finalizer = weakref.finalize(self, _shutdown, self._workers, os.getpid())

    def map(self, calls: Sequence[Call]) -> list[Update]:
        """Do the calls, largest clients first, each on the first worker that is free."""
        if not self._finalizer.alive:
            raise RuntimeError("this executor was closed; make a new one")
        agenda = Agenda(calls, self.scenario.sizes)
        packer = Packer()
        tickets = [pack(packer, call) for call in calls]
        busy: dict[Worker, int] = {}
        with Arena.of(packer) as arena:
            try:
                while agenda.open:
                    for worker in self._idle(busy, agenda.waiting):
                        busy[worker] = i = agenda.take()
                        worker.submit(arena, tickets[i])
                    for worker in ready(busy):
                        worker.settle(agenda, busy[worker])
                        del busy[worker]
            finally:
                for worker in busy:  # after an error or Ctrl-C nobody waits for these answers
                    worker.end()
        return agenda.results()

    def close(self) -> None:
        """Let the workers go; the pool cannot be used again."""
        self._finalizer()
        if "_init_payload" in self.__dict__:
            self._init_payload[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _idle(self, busy: dict[Worker, int], wanted: int) -> list[Worker]:
        """At most `wanted` free workers; those that are missing or dead are started."""
        free = [slot for slot in range(self.workers) if self._workers.get(slot) not in busy][:wanted]
        for slot in free:
            if slot not in self._workers or not self._workers[slot].alive:
                self._workers[slot] = self._spawn(slot)
        return [self._workers[slot] for slot in free]

    def _spawn(self, slot: int) -> Worker:
        numerics, arena, ticket = self._init_payload
        worker = Worker(self._context, Setup(self.devices[slot % len(self.devices)], self.threads, numerics))
        worker.submit(arena, ticket)
        return worker

    @cached_property
    def _init_payload(self) -> tuple[Numerics, Arena, Ticket]:
        """What every worker starts with: the parent's numerics and the scenario, as they were at the first map."""
        packer = Packer()
        with noting("executor=pool sends the scenario to its workers; use executor=serial for one that cannot be sent"):
            ticket = packer.add(self.scenario)
        return Numerics.of_this_process(), Arena.of(packer), ticket

    @cached_property
    def _context(self) -> ForkServerContext | SpawnContext:
        if self.start_method == "spawn":
            return multiprocessing.get_context("spawn")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        return context


class Worker(WorkerProcess):
    """A process that holds the scenario and does clients' calls."""

    def __init__(self, context: ForkServerContext | SpawnContext, setup: Setup) -> None:
        super().__init__(context, serve, setup, os.getcwd(), daemon=True, name="fnll-worker")

    def submit(self, arena: Arena, ticket: Ticket) -> None:
        """Hand over an object; if the worker is gone, `settle` finds out."""
        with suppress(*GONE):
            post(self.connection, arena, ticket)

    def settle(self, agenda: Agenda, i: int) -> None:
        """Take the answer to call `i`, or find that there will be none."""
        try:
            if not self.connection.poll():
                raise EOFError("it ended without a word")
            ticket = Ticket(*self.connection.recv())
            arena = Arena.receive(self.connection)
        except (EOFError, OSError):
            self.end()
            agenda.repeat(i, self.cause_of_death)
            return
        with arena:
            answer: Answer = arena.load(ticket)
        agenda.settle(i, answer)


def _shutdown(workers: dict[int, Worker], owner: int) -> None:
    """End of the pool, of the program, or of the last reference to the pool."""
    if os.getpid() != owner:  # a fork of the owner has a copy of the pool, but the workers are not its children
        return
    dismiss(workers.values())
    workers.clear()


def _checked(devices: Sequence[str], device: torch.device) -> list[torch.device]:
    """The workers' devices; one for all of them unless more are named."""
    try:
        named = [torch.device(name) for name in devices] or [device]
    except RuntimeError:
        raise UserError(f"executor.devices are names such as cuda:0, got {list(devices)}") from None
    if any(one.type != device.type for one in named):
        raise UserError(f"executor.devices must be of the same type as device={device.type}, got {list(devices)}")
    return named


def _start_method(device: torch.device) -> str:
    """A fork server starts workers fastest, but not where a device's context must not be forked."""
    return "forkserver" if device.type == "cpu" and "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
