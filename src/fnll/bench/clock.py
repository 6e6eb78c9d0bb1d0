"""Where time goes: a clock with phases, and the places of the library where one phase ends and another begins."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import fnll.executors.together
import fnll.executors.vectorised
import fnll.harness.observer
import fnll.training
import fnll.weights
from fnll.executors.rows import rows_of
from fnll.harness.checkpoint import Checkpoints
from fnll.harness.diagnostics import Diagnostics
from fnll.harness.run_folder import RunFolder
from fnll.net import Net
from fnll.types import Client


class Clock:
    """Charges all time to one phase at a time: what a phase spends in an inner one is the inner one's."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.trained = 0  # samples that went through training steps
        self._stack = ["idle"]
        self._last = time.perf_counter()

    def enter(self, phase: str) -> None:
        self._charge()
        self._stack.append(phase)

    def leave(self) -> None:
        self._charge()
        self._stack.pop()

    def _charge(self) -> None:
        now = time.perf_counter()
        self.seconds[self._stack[-1]] += now - self._last
        self._last = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, charged to phase `name`."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.enter(name)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return wrapped

    def drawn(self, batches: Callable[..., Iterator[Any]], *, training: bool) -> Callable[..., Iterator[Any]]:
        """A source of batches, whose preparation is charged to `data`; those of `training` are counted."""

        def wrapped(*args: Any, **kwargs: Any) -> Iterator[Any]:
            source = batches(*args, **kwargs)
            while True:
                with self.phase("data"):
                    batch = next(source, None)
                if batch is None:
                    return
                self.trained += len(batch.y) if training else 0
                yield batch

        return wrapped

    def stepping(self, stepper: Callable[..., Any]) -> Callable[..., Any]:
        """The maker of training steps, whose steps are charged to `step`."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return self.timed("step", stepper(*args, **kwargs))

        return wrapped


@contextmanager
def instrumented(clock: Clock) -> Iterator[None]:
    """Let `clock` see what the library does."""
    places: list[tuple[Any, str, Any]] = [
        (Client, "batches", clock.drawn(Client.batches, training=False)),
        (Client, "stretches", clock.drawn(Client.stretches, training=True)),
        (Client, "scan", clock.drawn(Client.scan, training=False)),
        (fnll.executors.together, "rows_of", clock.drawn(rows_of, training=False)),
        (fnll.training, "_stepper", clock.stepping(fnll.training._stepper)),
    ]
    points: dict[str, list[tuple[Any, str]]] = {
        "data": [(fnll.executors.together, "laid_out")],
        "step": [(fnll.executors.vectorised, "train_together")],
        "copy": [(Net, "load"), (fnll.training, "snapshot"), (fnll.executors.together, "snapshot")],
        "aggregate": [place for name in ("mean", "median") for place in _importers(name, getattr(fnll.weights, name))],
        "evaluate": [(fnll.harness.observer, "confusion"), (Diagnostics, "memorisation")],
        "logging": [(Diagnostics, "score"), (Diagnostics, "facts")],
        "records": [(RunFolder, "append"), (RunFolder, "written"), (Checkpoints, "save")],
    }
    for phase, found in points.items():
        places += [(owner, name, clock.timed(phase, getattr(owner, name))) for owner, name in found]
    with ExitStack() as stack:
        for owner, name, replacement in places:
            stack.enter_context(patch.object(owner, name, replacement))
        yield


def _importers(name: str, function: Callable[..., Any]) -> list[tuple[Any, str]]:
    """Every module that has `function` under its own name."""
    modules = list(sys.modules.values())
    return [(module, name) for module in modules if getattr(module, "__dict__", {}).get(name) is function]
