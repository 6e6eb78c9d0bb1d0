"""Worker processes on the other end of a pipe: what the pool of an executor and a local sweep have in common.

They differ in what is sent and in what a dead worker means: the pool repeats a call, a sweep resumes a run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

TIMEOUT = 5.0  # seconds that idle workers get to leave by themselves


class WorkerProcess:
    """A worker as its parent sees it. It serves until the pipe closes."""

    def __init__(
        self, context: ForkServerContext | SpawnContext, target: Callable[..., None], *args: Any, **process: Any
    ) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *args), **process)
        with sigint_blocked():  # also in the child, from its first instruction
            self.process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def end(self) -> None:
        """Stop at once."""
        self.connection.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    @property
    def cause_of_death(self) -> str:
        """How a dead worker ended."""
        code = self.process.exitcode
        return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


Some = TypeVar("Some", bound=WorkerProcess)


def ready(workers: Collection[Some], timeout: float | None = None) -> list[Some]:
    """Wait until at least one of the workers has said something or died, or until the time is over."""
    handles = {handle: worker for worker in workers for handle in (worker.connection, worker.process.sentinel)}
    return list(dict.fromkeys(handles[handle] for handle in wait(list(handles), timeout)))  # type: ignore[index]


def dismiss(workers: Collection[WorkerProcess]) -> None:
    """Let idle workers leave by themselves, all at the same time; whoever does not is stopped."""
    for worker in workers:
        worker.connection.close()  # the sign to leave
    for worker in workers:
        worker.process.join(TIMEOUT)
        worker.end()


def begin(directory: str) -> None:
    """What a worker does first: leave Ctrl-C to the parent, die with it, and be where it is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.chdir(directory)  # relative paths mean what they mean to the parent


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Keep Ctrl-C from this thread, and from processes it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_with_parent() -> None:
    """Do not train on for a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
