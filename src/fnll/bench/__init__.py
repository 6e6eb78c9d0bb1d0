"""`fnll bench`: where the time goes, and how far that is from bare PyTorch. docs/speed.md says how to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from fnll.bench.result import SuiteResult


@dataclass(frozen=True)
class Suite:
    """A set of measurements that belong together: its module has `measure(words, repeat) -> SuiteResult`."""

    summary: str
    module: str
    repeat: int  # how often, unless asked otherwise

    def __call__(self, words: Sequence[str], repeat: int | None = None) -> SuiteResult:
        measure: Callable[[Sequence[str], int], SuiteResult] = import_module(self.module).measure
        return measure(words, self.repeat if repeat is None else repeat)


SUITES = {
    "phases": Suite("where the time of a round goes, for any model and method", "fnll.bench.phases", 3),
    "train": Suite("local training: serial and pool against bare loops", "fnll.bench.train", 5),
    "round": Suite("a whole FedAvg round, evaluation included", "fnll.bench.rounds", 3),
    "vectorised": Suite("vectorised training of small networks", "fnll.bench.stacking", 7),
    "jobs": Suite("vectorised jobs of FedCorr, FedRN and FedNoRo", "fnll.bench.client_jobs", 5),
    "stage1": Suite("FedCorr's one-client rounds, evaluated after each", "fnll.bench.stage1", 5),
    "lid": Suite("local intrinsic dimensionality against numpy", "fnll.bench.lid", 5),
    "memory": Suite("peak memory and checkpoints against the number of clients", "fnll.bench.memory", 1),
    "growth": Suite("a round without its clients' work against the number of clients", "fnll.bench.growth", 1),
    "passes": Suite("models sent and passes over the data, as FedRN's table 10 counts them", "fnll.bench.passes", 1),
    "together": Suite("fifty runs, driven together and side by side", "fnll.bench.abreast", 1),
    "grid": Suite("twenty runs, one or two at a time", "fnll.bench.sweeps", 2),
}
