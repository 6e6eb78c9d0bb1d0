"""Warnings for the person who runs something: said once a run, and brought home from other processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_said: set[tuple[str, str]] = set()


class Notice(NamedTuple):
    """A warning on its way out of the process that noticed something."""

    logger: str
    text: str


def warn_once(log: logging.Logger, message: str) -> None:
    """Log a warning the first time it applies to a run."""
    if (log.name, message) not in _said:
        _said.add((log.name, message))
        log.warning("%s", message)


def forget() -> None:
    """Let everything be said again: another run begins in this process, and it has to be told, too."""
    _said.clear()


def exchange(said: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Let `said` be what was said so far, and hand back what was: several runs take turns in this process."""
    global _said
    before, _said = _said, said
    return before


def repeat(notice: Notice) -> None:
    """Log here what was noticed in another process, once for all of these processes."""
    warn_once(logging.getLogger(notice.logger), notice.text)


class Collector(logging.Handler):
    """Keeps the warnings of this process until they are taken along."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[Notice] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(Notice(record.name, record.getMessage()))

    def take(self) -> tuple[Notice, ...]:
        """What came since the last time."""
        taken, self._kept = tuple(self._kept), []
        return taken


@contextmanager
def gathered() -> Iterator[list[Notice]]:
    """Keep what is warned of meanwhile, for those whom it concerns to repeat."""
    root, collector, notices = logging.getLogger(), Collector(), list[Notice]()
    outside, root.handlers = root.handlers, [collector]
    said = exchange(set())
    try:
        yield notices
    finally:
        root.handlers = outside
        exchange(said)
        notices += collector.take()
