"""Runs side by side in processes of this machine, each reused for run after run: importing torch takes seconds."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing import forkserver
from multiprocessing.connection import Connection

from omegaconf import DictConfig, OmegaConf

from fnll.errors import UserError
from fnll.sweep.bundles import Bundle
from fnll.sweep.events import Ended, Event, Lost
from fnll.sweep.grid import PlannedRun
from fnll.system.processes import GONE
from fnll.system.workers import WorkerProcess, dismiss, ready, sigint_blocked

log = logging.getLogger(__name__)

PRELOAD = ["fnll.sweep.runner"]  # imported once, by the fork server
TRIES = 3  # fork servers that may die in a row


def warm_up() -> None:
    """Let the fork server start importing, while the caller continues."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    with sigint_blocked():  # in the fork server and all its children: Ctrl-C is our business
        forkserver.ensure_running()


def room_for(configs: Iterable[DictConfig], most: int, usable: int) -> tuple[int, bool]:
    """How many of these runs at a time, at most `most`, keep `usable` cores busy; and whether cores are left over."""
    cores = max(cores_of(cfg, usable) for cfg in configs)
    room = max(1, min(most, usable // cores))
    return room, room * (cores + 1) <= usable


def cores_of(cfg: DictConfig, usable: int) -> int:
    """Cores that one run keeps busy: its threads times its own worker processes, if its executor has any."""
    threads = int(OmegaConf.select(cfg, "executor.threads", default=1))
    if "workers" not in cfg.executor:
        return threads
    return threads * int(cfg.executor.workers or max(1, usable // threads))


class LocalLauncher:
    """Worker processes on this machine, each with one run, or with up to `together` that are advanced side by side."""

    patience = 2.0

    def __init__(self, processes: int, *, spare_core: bool, together: int = 1) -> None:
        self.room, self.spare_core, self.together = processes, spare_core, together
        self.manner = f"{processes} at a time" if together == 1 else f"{processes} × {together} together at a time"
        self._workers: list[Runner] = []

    def submit(self, bundles: Sequence[Bundle]) -> None:
        warm_up()  # not before: a sweep whose runs are all finished needs no torch
        for bundle in bundles:
            idle = next((worker for worker in self._workers if not worker.runs), None)
            if idle is None:
                idle = new_worker(self.spare_core)
                self._workers.append(idle)
            idle.take(bundle)

    def events(self, timeout: float) -> list[tuple[PlannedRun, Event]]:
        busy = [worker for worker in self._workers if worker.runs]
        return [event for worker in ready(busy, timeout) for event in self._hear(worker)]

    def _hear(self, worker: Runner) -> list[tuple[PlannedRun, Event]]:
        alive = worker.alive
        told = worker.hear()  # after `alive`, so that nothing can come later from a dead worker
        if not alive:
            worker.end()
            self._workers.remove(worker)
            told += [(run, Lost(worker.cause_of_death)) for run in worker.runs.values()]
        return told

    def close(self) -> None:
        for worker in self._workers:
            if worker.runs:
                worker.end()
        dismiss([worker for worker in self._workers if not worker.runs])
        self._workers = []


class Runner(WorkerProcess):
    """A process that does one bundle after the other."""

    def __init__(self, spare_core: bool) -> None:
        # Not a daemon: its runs may have worker processes of their own. It leaves with us through `workers.begin`.
        super().__init__(multiprocessing.get_context("forkserver"), _serve, os.getcwd(), spare_core, name="fnll-sweep")
        self.runs: dict[int, PlannedRun] = {}  # under way, by their tickets
        self._tickets = count()

    def take(self, bundle: Bundle) -> None:
        self.runs = {next(self._tickets): run for run in bundle}
        with suppress(*GONE):  # if it died meanwhile, `LocalLauncher.events` finds out
            self.connection.send(self.runs)

    def hear(self) -> list[tuple[PlannedRun, Event]]:
        """What it has said so far; runs that ended are no longer its own."""
        told: list[tuple[PlannedRun, Event]] = []
        with suppress(*GONE, OSError):
            while self.connection.poll():
                ticket, event = self.connection.recv()
                # A warning may come after the run that it was sent for: it is of this process, where others go on.
                run = self.runs.get(ticket) or next(iter(self.runs.values()), None)
                if isinstance(event, Ended):
                    del self.runs[ticket]
                if run is not None:
                    told.append((run, event))
        return told

    @property
    def cause_of_death(self) -> str:
        if self.process.exitcode == -signal.SIGKILL:
            return "SIGKILL: often the system's answer when memory runs out; --jobs 1 needs the least"
        return super().cause_of_death


def new_worker(spare_core: bool) -> Runner:
    """A worker; if the fork server dies while it is asked for one, from the next fork server."""
    for attempt in range(TRIES):
        try:
            return Runner(spare_core)
        except (EOFError, OSError) as error:
            log.warning("the process that starts workers died (%s); starting another", type(error).__name__)
            if attempt == TRIES - 1:
                raise UserError(
                    f"the process that starts the sweep's workers died {TRIES} times; if memory is short, close other "
                    "programs, then type the command again to resume"
                ) from error
            warm_up()
    raise AssertionError("unreachable")


def _serve(connection: Connection, directory: str, spare_core: bool) -> None:
    from fnll.sweep.runner import serve  # late: this process needs no torch, and the fork server has it already

    serve(connection, directory, spare_core)
