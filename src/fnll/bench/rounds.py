"""A whole round, evaluation and records included, against its training alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fnll.bench.measure import Stopwatch, Variant, deterministic, take_turns
from fnll.bench.result import Claim, SuiteResult, faster
from fnll.bench.subjects import LENET, local_of, observed, play, run_of
from fnll.federation import Executor
from fnll.harness.prepare import Run
from fnll.system.processes import usable_cores
from fnll.types import Call, Update

ROUNDS = 2  # so that one evaluation can lie beside training, and one cannot


@dataclass
class Timed:
    """An executor whose work is timed."""

    inner: Executor
    watch: Stopwatch
    exact: bool = True

    def map(self, calls: Sequence[Call]) -> list[Update]:
        with self.watch:
            return self.inner.map(calls)

    def close(self) -> None:
        self.inner.close()


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """FedAvg with LeNet-5 and 10,000 test images; `words` may change that."""
    words = (*LENET, f"rounds={ROUNDS}", *words)
    run = run_of(words)
    executor = run.executor()
    samples = _samples(run)

    def training(watch: Stopwatch) -> int:
        play(run, Timed(executor, watch), ROUNDS)
        return samples

    with deterministic("warn"):
        variants: dict[str, Variant] = {"training alone": training}
        for name, overlap in (("evaluation beside training", True), ("evaluation in between", False)):
            variants[name] = _whole(run, executor, samples, overlap)
        timings = take_turns(variants, repeat)
    executor.close()
    alone, beside, between = timings
    costs = [1 / faster(timings, name, alone) for name in (beside, between)]
    free = usable_cores() > 1
    claims = (
        Claim("round, evaluation beside training / training alone", costs[0], at_most=1.15 if free else None),
        Claim("round, evaluation in between / training alone", costs[1], at_most=None if free else 1.15),
    )
    return SuiteResult("round", words, timings, claims, {"rounds": ROUNDS})


def _whole(run: Run, executor: Executor, samples: int, overlap: bool) -> Variant:
    def variant(watch: Stopwatch) -> int:
        with observed(run, overlap=overlap) as observer, watch:
            play(run, executor, ROUNDS, observer)
        return samples

    return variant


def _samples(run: Run) -> int:
    """Samples trained on in all rounds, if every client holds as many."""
    mean = sum(run.scenario.sizes) / len(run.scenario.sizes)
    return round(ROUNDS * run.cohort_size * mean * local_of(run).epochs)
