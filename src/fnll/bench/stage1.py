"""FedCorr's first stage visits one client at a time: what it costs to evaluate after each of them."""

from __future__ import annotations

from collections.abc import Sequence

from fnll.bench.measure import Stopwatch, Variant, deterministic, take_turns
from fnll.bench.result import Claim, SuiteResult, faster
from fnll.bench.subjects import LENET, local_of, observed, play, run_of
from fnll.system.processes import usable_cores

# With m = 1 every client update is a step of the grid, and so is followed by an evaluation.
STAGE1 = ("method=fedcorr", "method.passes=1", "method.finetune=0", "fraction=1e-9")


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """Ten clients of LeNet-5, one after the other, with 10,000 test images; `words` may change that."""
    words = (*LENET, *STAGE1, *words)
    clients = len(run_of((*words, "rounds=1")).scenario.shards)
    words = (*words, f"rounds={clients + 20}")  # beyond the last ten, which are always evaluated
    run = run_of(words)
    executor = run.executor()
    samples = sum(run.scenario.sizes) * local_of(run).epochs

    def alone(watch: Stopwatch) -> int:
        with watch:
            play(run, executor, clients)
        return samples

    def evaluated(overlap: bool) -> Variant:
        def variant(watch: Stopwatch) -> int:
            with observed(run, overlap=overlap) as observer, watch:
                play(run, executor, clients, observer)
            return samples

        return variant

    variants = {
        "stage 1 alone": alone,
        "evaluation beside training": evaluated(overlap=True),
        "evaluation in between": evaluated(overlap=False),
    }
    with deterministic("warn"):
        timings = take_turns(variants, repeat)
    executor.close()
    first, beside, between = timings
    wanted = 1.15 if usable_cores() > 1 else None
    claims = (
        Claim("stage 1, evaluated beside training / alone", 1 / faster(timings, beside, first), at_most=wanted),
        Claim("stage 1, evaluated in between / alone", 1 / faster(timings, between, first)),
    )
    return SuiteResult("stage1", words, timings, claims, {"clients": clients})
