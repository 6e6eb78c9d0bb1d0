"""When a run has diverged: an outcome like others, with the step at which it happened, and not a crash.

A run has diverged when the global weights stop being finite, when a round fails over numbers that are not finite, or
when it ends with a test loss that is not finite or `HOPELESS` times that of guessing. The last rule looks at the end
only: a run that recovers from a spike has not diverged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fnll.errors import NotFiniteError
from fnll.federation import Executor, Snapshot
from fnll.tools.finite import NOT_NUMERICAL, beyond_numbers
from fnll.types import Call, Update

HOPELESS = 1000  # times ln(classes), the loss of guessing
NUMERICAL = (NotFiniteError, OverflowError, FloatingPointError)  # raised where such a number is met


class LastUpdates:
    """An executor that remembers the last updates, so that the cause of a failed round can be looked for in them."""

    def __init__(self, executor: Executor) -> None:
        self.executor, self.exact = executor, executor.exact
        self.last: Sequence[Update] = ()

    def map(self, calls: Sequence[Call]) -> list[Update]:
        self.last = ()
        updates = self.executor.map(calls)
        self.last = updates
        return updates

    def close(self) -> None:
        self.executor.close()


def failed_over_numbers(error: Exception, before: Snapshot | None, updates: Sequence[Update]) -> bool:
    """Whether a round failed because numbers were not finite: by the type of the error, or they are there to be seen.

    What the error says does not count: a sentence about infinity is none about this run. Neither do facts that a method
    keeps beside its weights, where NaN often means unknown. Jobs look at their own numbers where they fail
    (`fnll.executors.jobs`), which may be in another process.
    """
    if isinstance(error, NOT_NUMERICAL):
        return False
    sent = [(update.weights, update.report) for update in updates]
    return isinstance(error, NUMERICAL) or beyond_numbers(before.state.weights if before else None, sent)


def hopeless_from(rows: Sequence[Mapping[str, Any]], num_classes: int) -> int | None:
    """The step from which on the test loss was beyond hope until the end; None if it was not at the end."""
    since = None
    for row in reversed(rows):
        loss = row["test/loss"]
        if loss is not None and loss <= HOPELESS * math.log(max(2, num_classes)):
            break
        since = int(row["step"])
    return since
