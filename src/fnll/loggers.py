"""Mirrors of a run's records. `metrics.jsonl` is always written and is the source of every table."""

from __future__ import annotations

from fnll.config import Request
from fnll.run import Progress


def watchers(request: Request) -> list[Progress]:
    """The loggers that a config asks for."""
    return []
