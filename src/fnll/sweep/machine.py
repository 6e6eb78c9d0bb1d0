"""Runs side by side in processes of this machine, each reused for run after run: importing torch takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait

from omegaconf import DictConfig, OmegaConf

from fnll.sweep.events import Ended, Event, Lost
from fnll.sweep.grid import PlannedRun
from fnll.system.processes import GONE

PRELOAD = ["fnll.sweep.runner"]  # imported once, by the fork server
TIMEOUT = 5.0  # seconds that idle workers get to leave by themselves


def warm_up() -> None:
    """Let the fork server start importing, while the caller continues."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    with _sigint_blocked():  # in the fork server and all its children: Ctrl-C is our business
        forkserver.ensure_running()


def room_for(configs: Iterable[DictConfig], jobs: int, usable: int) -> tuple[int, bool]:
    """How many of these runs at a time, at most `jobs`, keep `usable` cores busy; and whether cores are left over."""
    cores = max(cores_of(cfg, usable) for cfg in configs)
    room = max(1, min(jobs, usable // cores))
    return room, room * (cores + 1) <= usable


def cores_of(cfg: DictConfig, usable: int) -> int:
    """Cores that one run keeps busy: its threads times its own worker processes, if its executor has any."""
    threads = int(OmegaConf.select(cfg, "executor.threads", default=1))
    if "workers" not in cfg.executor:
        return threads
    return threads * int(cfg.executor.workers or max(1, usable // threads))


class LocalLauncher:
    """Worker processes on this machine."""

    patience = 2.0

    def __init__(self, room: int, *, spare_core: bool) -> None:
        self.room, self.spare_core = room, spare_core
        self.manner = f"{room} at a time"
        self._idle: list[Worker] = []
        self._busy: dict[Worker, PlannedRun] = {}

    def submit(self, jobs: Sequence[PlannedRun]) -> None:
        warm_up()  # not before: a sweep whose runs are all finished needs no torch
        for job in jobs:
            worker = self._idle.pop() if self._idle else Worker(self.spare_core)
            self._busy[worker] = job
            worker.take(job)

    def events(self, timeout: float) -> list[tuple[PlannedRun, Event]]:
        handles = {handle: worker for worker in self._busy for handle in (worker.connection, worker.process.sentinel)}
        ready = {handles[handle]: None for handle in wait(list(handles), timeout)}  # type: ignore[index]
        return [event for worker in ready for event in self._hear(worker)]

    def _hear(self, worker: Worker) -> list[tuple[PlannedRun, Event]]:
        job = self._busy[worker]
        alive = worker.alive
        told = worker.hear()  # after `alive`, so that nothing can come later from a dead worker
        if any(isinstance(event, Ended) for event in told):
            del self._busy[worker]
            self._idle.append(worker)
        elif not alive:
            worker.end()
            del self._busy[worker]
            told.append(Lost(worker.cause_of_death))
        return [(job, event) for event in told]

    def close(self) -> None:
        for worker in self._busy:
            worker.end()
        for worker in self._idle:
            worker.connection.close()  # the sign to leave
        for worker in self._idle:
            worker.process.join(TIMEOUT)
            worker.end()
        self._busy, self._idle = {}, []


class Worker:
    """A worker process as its parent sees it."""

    def __init__(self, spare_core: bool) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, theirs = context.Pipe()
        # Not a daemon: its runs may have worker processes of their own. It leaves with us through `_die_with_parent`.
        self.process = context.Process(target=_serve, args=(theirs, os.getcwd(), spare_core), name="fnll-sweep")
        self.process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def take(self, job: PlannedRun) -> None:
        with suppress(*GONE):  # if it died meanwhile, `LocalLauncher.events` finds out
            self.connection.send(job)

    def hear(self) -> list[Event]:
        """What it has said so far."""
        told: list[Event] = []
        with suppress(*GONE, OSError):
            while self.connection.poll():
                told.append(self.connection.recv())
        return told

    def end(self) -> None:
        """Stop at once."""
        self.connection.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    @property
    def cause_of_death(self) -> str:
        code = self.process.exitcode
        if code == -signal.SIGKILL:
            return "SIGKILL: often the system's answer when memory runs out; --jobs 1 needs the least"
        return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _serve(connection: Connection, directory: str, spare_core: bool) -> None:
    from fnll.sweep.runner import serve  # late: this process needs no torch, and the fork server has it already

    serve(connection, directory, spare_core)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
