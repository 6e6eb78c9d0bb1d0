"""A run that waits at its requests, so that several runs can be advanced in one process.

Methods call `fed.map` as ever. The run is in a thread of its own, of which only one is ever awake: when it asks for its
clients' work it sleeps, and `Suspended.advance` returns what it asked for. Between its turns the run keeps its
place in the code, its global random generators and its thread's settings (torch's threads, gradient mode) to itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Generic, TypeVar

import torch

from fnll.seeding import Streams
from fnll.types import Call, Update

T = TypeVar("T")


class Abandoned(BaseException):
    """Ends a run from inside that nobody advances any more."""


class Inquiry:
    """The executor of a suspended run: hands over what it is asked for and sleeps until it is done."""

    def __init__(self, owner: Suspended[object], exact: bool) -> None:
        self._owner, self.exact = owner, exact

    def map(self, calls: Sequence[Call]) -> list[Update]:
        return self._owner.wait(calls)

    def close(self) -> None:
        """Nothing to release."""


class Suspended(Generic[T]):
    """A computation `body(executor)` that can be advanced from one request for clients' work to the next.

    run = Suspended(lambda executor: play(method, world, executor=executor))
    calls = run.advance()
    while calls is not None:
        calls = run.advance([perform(scenario, call, device) for call in calls])
    run.result
    """

    def __init__(
        self,
        body: Callable[[Inquiry], T],
        *,
        exact: bool = True,
        threads: int = 1,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._body, self._torch_threads = body, threads
        self._around = around  # entered for each of its turns: what else of the process is the run's own
        self._inquiry = Inquiry(self, exact)  # type: ignore[arg-type]
        self._streams = Streams(None)  # as they are when the run is first advanced
        self._thread = threading.Thread(target=self._live, name="fnll-run", daemon=True)
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._calls: Sequence[Call] | None = None
        self._answer: Sequence[Update] | BaseException | None = None
        self._result: list[T] = []
        self._error: BaseException | None = None

    @property
    def result(self) -> T:
        """What the body returned."""
        if not self._result:
            raise RuntimeError("the run is not over")
        return self._result[0]

    def advance(self, answer: Sequence[Update] | BaseException | None = None) -> Sequence[Call] | None:
        """Answer the last request (with updates, or with the error they ended in) and go on to the next one.

        None when the body has returned; an error of the body is raised here.
        """
        self._answer, self._calls = answer, None
        with self._around(), self._streams.active():
            if self._thread.ident is None:
                self._thread.start()
            else:
                self._go.release()
            self._paused.acquire()
        if self._error is not None:
            raise self._error
        return self._calls

    def close(self) -> None:
        """Give a run up that is not over: it ends at its request, and cleans up."""
        if self._thread.is_alive():
            with suppress(Abandoned):
                self.advance(Abandoned())
            self._thread.join()

    def wait(self, calls: Sequence[Call]) -> list[Update]:
        """Called by the run itself: sleep until these calls are done."""
        self._calls = calls
        self._paused.release()
        self._go.acquire()
        answer = self._answer
        if isinstance(answer, BaseException):
            raise answer
        if answer is None:
            raise RuntimeError("a run was advanced without the updates that it waits for")
        return list(answer)

    def _live(self) -> None:
        torch.set_num_threads(self._torch_threads)  # OpenMP's number belongs to the thread
        try:
            self._result.append(self._body(self._inquiry))
        except BaseException as error:
            self._error = error
        finally:
            self._paused.release()
