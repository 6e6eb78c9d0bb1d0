"""How often Python looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = 20_000  # new objects between two looks; Python's own 700 are for programs that make fewer of them at a start


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """For imports and settings, whose objects stay: looking through them took a quarter of the time of an import.

    Not for training, where what waits to be collected may hold a network.
    """
    before = gc.get_threshold()
    gc.set_threshold(RARELY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
