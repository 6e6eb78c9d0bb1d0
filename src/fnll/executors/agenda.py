"""The order of one map's calls, what becomes of each, and what the caller gets: the same for processes and for Ray."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from fnll.system.notices import Notice, repeat
from fnll.types import Call, Update

log = logging.getLogger(__name__)

ATTEMPTS = 3  # times that one call may take its worker with it before the run is given up


class WorkerDiedError(RuntimeError):
    """The process that did a client's job ended without an answer, again and again."""


class RemoteError(Exception):
    """The traceback of an error in another process, as text; shown as the cause of the error."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True)
class Failure:
    """A job's exception on its way to the parent."""

    error: Exception
    notes: tuple[str, ...]
    traceback: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        notes = tuple(getattr(error, "__notes__", ()))
        return cls(_portable(error), notes, "".join(traceback.format_exception(error)))

    def raise_here(self) -> NoReturn:
        """Raise the job's exception in this process."""
        self.error.__notes__ = list(self.notes)
        raise self.error from RemoteError(self.traceback)


@dataclass(frozen=True)
class Answer:
    """What comes back from another process: the update or why there is none, and what was warned of there."""

    reply: Update | Failure
    notices: tuple[Notice, ...] = ()


def _portable(error: Exception) -> Exception:
    """The exception, or one that says the same if it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__qualname__}: {error}")
    return error


def title(call: Call) -> str:
    """How messages name a call."""
    return f"client {call.client}, round {call.t}, job {call.name}"


class Agenda:
    """Largest clients first, so that no worker is left with a long job at the end; results in the order of calls."""

    def __init__(self, calls: Sequence[Call], sizes: Sequence[int]) -> None:
        self.calls = calls
        self._waiting = deque(sorted(range(len(calls)), key=lambda i: -sizes[calls[i].client]))
        self._running: set[int] = set()
        self._updates: dict[int, Update] = {}
        self._failures: dict[int, Failure] = {}
        self._deaths: Counter[int] = Counter()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def open(self) -> bool:
        """Whether an answer that matters is still to come.

        After a failure only the calls before it matter: the caller gets the error that `Serial` would have raised.
        """
        return bool(self._waiting) or any(i < self._end for i in self._running)

    def take(self) -> int:
        """The next call to do."""
        i = self._waiting.popleft()
        self._running.add(i)
        return i

    def settle(self, i: int, answer: Answer) -> None:
        """Call `i` was answered."""
        for notice in answer.notices:
            repeat(notice)
        reply = answer.reply
        self._running.discard(i)
        if isinstance(reply, Failure):
            self._failures[i] = reply
            self._waiting = deque(j for j in self._waiting if j < self._end)
        else:
            self._updates[i] = reply

    def repeat(self, i: int, reason: str) -> None:
        """Call `i` lost its worker; it is done again, with the same numbers since its seed is its own."""
        self._running.discard(i)
        self._deaths[i] += 1
        if self._deaths[i] >= ATTEMPTS:
            raise died(self.calls[i], reason)
        log.warning("%s: its worker died (%s); the job is done again", title(self.calls[i]), reason)
        if i < self._end:
            self._waiting.appendleft(i)

    def results(self) -> list[Update]:
        """The updates in the order of the calls, or the first failure in that order."""
        if self._failures:
            self._failures[min(self._failures)].raise_here()
        return [self._updates[i] for i in range(len(self.calls))]

    @property
    def _end(self) -> int:
        return min(self._failures, default=len(self.calls))


def died(call: Call, reason: str) -> WorkerDiedError:
    """The error after the last attempt."""
    return WorkerDiedError(
        f"{title(call)}: the worker doing it died {ATTEMPTS} times ({reason}). If memory ran out, use fewer workers "
        "(executor.workers); executor=serial runs the job in the main process, where a crash can be seen"
    )
