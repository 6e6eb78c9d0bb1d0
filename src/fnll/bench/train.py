"""Local training of one round: what the harness adds to bare loops over the same batches."""

from __future__ import annotations

from collections.abc import Sequence

from fnll.bench.bare import Processes, loop, ready_made
from fnll.bench.measure import Stopwatch, Variant, deterministic, take_turns
from fnll.bench.result import Claim, Result, faster
from fnll.bench.worlds import LENET, clients_of, experiment_of, first_calls, local_of, trained
from fnll.executors import Pool, Serial

WORKERS = 2


def measure(words: Sequence[str], repeat: int) -> Result:
    """LeNet-5 on 32x32x3, batches of 10, 10 clients of 500 samples, 5 epochs, crop and flip, unless `words` differ."""
    words = (*LENET, *words)
    experiment = experiment_of(words)
    calls, spec = first_calls(experiment), local_of(experiment)
    clients, samples = clients_of(experiment, calls), trained(experiment, calls)
    batches = ready_made(clients, spec)
    executor = Serial(experiment.scenario)

    def serial(watch: Stopwatch) -> int:
        with watch:
            executor.map(calls)
        return samples

    def pooled(watch: Stopwatch) -> int:
        with watch:
            pool.map(calls)
        return samples

    with (
        deterministic("warn"),
        Pool(experiment.scenario, workers=WORKERS) as pool,
        Processes(experiment.net, spec, clients, WORKERS) as processes,
    ):
        pool.map(calls[:WORKERS])  # starts the workers
        variants: dict[str, Variant] = {
            "serial": serial,
            "bare loop": lambda watch: loop(experiment.net, spec, batches, watch),
            f"pool, {WORKERS} workers": pooled,
            f"{WORKERS} bare processes": processes,
        }
        timings = take_turns(variants, repeat)
    one, bare, many, processes_ = timings
    claims = (
        Claim("serial / bare loop", faster(timings, one, bare), at_least=0.95),
        Claim(f"{many} / {processes_}", faster(timings, many, processes_), at_least=0.90),
        Claim(f"{many} / serial", faster(timings, many, one)),
        Claim(f"{processes_} / bare loop", faster(timings, processes_, bare)),
    )
    return Result("train", words, timings, claims)
