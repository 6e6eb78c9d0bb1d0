"""Fair timing: variants take turns, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch

from fnll.bench.result import Timing
from fnll.executors.numerics import set_deterministic


class Stopwatch:
    """Adds up the time that is spent inside of its `with` blocks."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.wall += wall - self._began[0]
        self.cpu += cpu - self._began[1]


Variant = Callable[[Stopwatch], int]
"""Does some work, inside of the stopwatch what is to be timed, and says how many samples that was."""


def take_turns(variants: Mapping[str, Variant], repeat: int) -> dict[str, Timing]:
    """Each variant `repeat` times: A, B, A, B, ..."""
    spent: dict[str, list[tuple[int, float, float]]] = {name: [] for name in variants}
    for _ in range(repeat):
        for name, variant in variants.items():
            watch = Stopwatch()
            samples = variant(watch)
            spent[name].append((samples, watch.wall, watch.cpu))
    return {name: Timing(*zip(*times, strict=True)) for name, times in spent.items()}


@contextmanager
def deterministic(mode: str) -> Iterator[None]:
    """torch's debug mode: `warn` is what `fnll run` sets, `default` what a bare script has."""
    before = torch.get_deterministic_debug_mode()
    set_deterministic(mode)
    try:
        yield
    finally:
        set_deterministic(before)
