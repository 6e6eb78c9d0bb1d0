"""Local training of one round: what the harness adds to bare loops over the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from fnll.bench.bare import Processes, loop, ready_made
from fnll.bench.measure import Stopwatch, Variant, deterministic, take_turns
from fnll.bench.result import Claim, SuiteResult, faster
from fnll.bench.subjects import LENET, clients_of, first_calls, local_of, run_of, trained
from fnll.executors import Pool, Serial
from fnll.federation import Executor
from fnll.system.processes import usable_cores
from fnll.types import Call

WORKERS = 2


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """LeNet-5 on 32x32x3, batches of 10, 10 clients of 500 samples, 5 epochs, crop and flip, unless `words` differ.

    One process is compared client by client, in many short turns, since a neighbour of a virtual machine can slow it
    by a fifth for seconds; several processes are compared by whole rounds, which they share out.
    """
    words = (*LENET, *words)
    run = run_of(words)
    net, calls, spec = run.net, first_calls(run), local_of(run)
    clients = clients_of(run, calls)
    turns_of_ours, turns_of_bare = cycle(calls), cycle(clients)
    serial = Serial(run.scenario)

    def trains(executor: Executor, calls: Sequence[Call], watch: Stopwatch) -> int:
        with watch:
            executor.map(calls)
        return trained(run, calls)

    with (
        deterministic("warn"),
        Pool(run.scenario, workers=WORKERS) as pool,
        Processes(net, spec, clients, WORKERS) as processes,
    ):
        pool.map(calls[:WORKERS])  # starts the workers
        by_client: dict[str, Variant] = {
            "serial": lambda watch: trains(serial, [next(turns_of_ours)], watch),
            "bare loop": lambda watch: loop(net, spec, ready_made([next(turns_of_bare)], spec), watch),
        }
        by_round: dict[str, Variant] = {
            "serial, a round": lambda watch: trains(serial, calls, watch),
            f"pool, {WORKERS} workers": lambda watch: trains(pool, calls, watch),
            f"{WORKERS} bare processes": processes,
        }
        timings = take_turns(by_client, repeat * len(calls)) | take_turns(by_round, repeat)
    one, bare, whole, many, processes_ = timings
    claims = (
        Claim(f"{one} / {bare}", faster(timings, one, bare), at_least=0.95),
        Claim(f"{many} / {processes_}", faster(timings, many, processes_), at_least=0.90),
        Claim(f"{many} / serial", faster(timings, many, whole), at_least=1.8 if usable_cores() >= WORKERS else None),
    )
    return SuiteResult("train", words, timings, claims)
