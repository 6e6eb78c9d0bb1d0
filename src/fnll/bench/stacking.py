"""Vectorised training of small networks: many clients in one call, two threads, against one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from fnll.bench.measure import Stopwatch, Variant, deterministic, take_turns
from fnll.bench.result import Claim, SuiteResult, Timing, faster
from fnll.bench.subjects import first_calls, run_of, trained
from fnll.executors import Serial
from fnll.executors.numerics import limit_threads
from fnll.executors.vectorised import Vectorised
from fnll.federation import Executor

SMALL = (
    "dataset=synthetic", "dataset.size=8", "dataset.channels=1", "dataset.samples=5000", "dataset.test_samples=100",
    "num_clients=50", "fraction=1.0", "local.epochs=5", "local.batch_size=10",
)  # fmt: skip
MODELS = ("small_cnn", "mlp")
THREADS = (1, 2)


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """Fifty clients with 100 images of 8x8 pixels, 5 epochs, batches of 10; `words` may change that."""
    timings: dict[str, Timing] = {}
    claims = []
    for model in MODELS:
        own = _compared((f"model={model}", *SMALL, *words), repeat)
        timings |= {f"{model}: {name}": timing for name, timing in own.items()}
        serial, *vectorised = own
        for name in vectorised:
            wanted = 4.0 if name == vectorised[-1] else None
            claims.append(Claim(f"{model}: {name} / {serial}", faster(own, name, serial), at_least=wanted))
    return SuiteResult("vectorised", (*SMALL, *words), timings, tuple(claims))


def _compared(words: Sequence[str], repeat: int) -> dict[str, Timing]:
    run = run_of(words)
    calls = first_calls(run)
    samples = trained(run, calls)

    def variant(executor: Executor, threads: int) -> Variant:
        def run(watch: Stopwatch) -> int:
            limit_threads(threads)
            with watch:
                executor.map(calls)
            return samples

        return run

    executor = Vectorised(run.scenario)
    variants = {"serial, 1 thread": variant(Serial(run.scenario), 1)}
    for threads in THREADS:
        variants[f"vectorised, {threads} thread{'s' if threads > 1 else ''}"] = variant(executor, threads)
    try:
        with deterministic("warn"):
            return take_turns(variants, repeat)
    finally:
        limit_threads(1)
