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


@contextmanager
def sparing_what_is_there() -> Iterator[None]:
    """Leave out of every look what exists already: half a million objects of torch and Hydra, which stay.

    Looking through them again and again was a tenth of a small network's training. What is made inside is collected as
    ever.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
