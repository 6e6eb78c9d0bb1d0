"""When a run has diverged: an outcome like others, with the step at which it happened, and not a crash.

A run has diverged when the global weights stop being finite, when a round fails over numbers that are not finite, or
when it ends with a test loss that is not finite or `HOPELESS` times that of guessing. The last rule looks at the end
only: a run that recovers from a spike has not diverged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fnll.errors import UserError
from fnll.federation import Executor, Snapshot
from fnll.types import Call, Update

HOPELESS = 1000  # times ln(classes), the loss of guessing
SPEAKS_OF_IT = re.compile(r"\b(nan|inf|infinity|finite|non-?finite|overflow)\b", re.IGNORECASE)
NOT_NUMERICAL = (UserError, OSError, MemoryError, AssertionError, AttributeError, NameError, ImportError)


class Watched:
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
    """Whether a round failed because numbers were not finite: the error says so, or they are there to be seen."""
    if isinstance(error, NOT_NUMERICAL):
        return False
    if SPEAKS_OF_IT.search(f"{type(error).__name__} {error}"):
        return True
    seen = [before.state if before else None, *((update.weights, update.report, update.memory) for update in updates)]
    return not all(_finite(value) for part in seen for value in _numbers(part))


def hopeless_from(rows: Sequence[Mapping[str, Any]], num_classes: int) -> int | None:
    """The step from which on the test loss was beyond hope until the end; None if it was not at the end."""
    since = None
    for row in reversed(rows):
        loss = row["test/loss"]
        if loss is not None and loss <= HOPELESS * math.log(max(2, num_classes)):
            break
        since = int(row["step"])
    return since


def _numbers(value: object) -> Iterator[Tensor | np.ndarray | float]:
    if isinstance(value, (Tensor, np.ndarray, float)):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _numbers(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _numbers(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _numbers(getattr(value, field.name))


def _finite(value: Tensor | np.ndarray | float) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    tensor = torch.as_tensor(value) if not isinstance(value, np.ndarray) or value.dtype.kind in "fiub" else None
    return tensor is None or not tensor.is_floating_point() or bool(tensor.isfinite().all())
