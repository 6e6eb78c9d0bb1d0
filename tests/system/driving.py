"""Doing a client's job by hand, for tests that look at one job without an executor."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from fnll.executors.jobs import met


def done(job: Any) -> Any:
    """What a started job comes to: `job` itself, or what the generator returns once its requests are met."""
    if not isinstance(job, Generator):
        return job
    try:
        request = next(job)
        while True:
            request = job.send(met(request))
    except StopIteration as end:
        return end.value
