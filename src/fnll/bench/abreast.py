"""A grid of fifty small runs: runs driven together against runs side by side, and against what its steps allow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from fnll.bench.measure import Stopwatch, Variant, deterministic, take_turns
from fnll.bench.probe import peak_memory
from fnll.bench.result import Claim, SuiteResult, Timing, faster
from fnll.bench.subjects import first_calls, run_of, trained
from fnll.bench.sweeps import sweep
from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.federation import Executor
from fnll.system.files import temporary_folder

WORLD = ("dataset=digits", "num_clients=20", "fraction=0.5")
GRID = ("method=fedavg,fedprox,fedla,fednoro,fedrn", "noise.rho=0.4,0.8", "seed=range(5)")  # of the default rounds
WAYS = {  # of doing the grid, each with two processes
    "serial": ("executor=serial",),
    "vectorised, each run alone": ("executor=vectorised", "sweep.together=1"),
    "vectorised, together": ("executor=vectorised", "sweep.together=10"),
}
WANTED = {"small_cnn": 2.0, "mlp": 3.0}  # times as fast as serial
LANES = 50
GROUP = 10  # runs whose memory is compared with that of one


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """5 methods × 2 noises × 5 seeds on digits, ten clients a round; `words` may change the grid. Imports count."""
    timings: dict[str, Timing] = {}
    claims: list[Claim] = []
    for model, wanted in WANTED.items():
        whole = take_turns(
            {name: sweep((*WORLD, *GRID, f"model={model}", *more, *words), 2) for name, more in WAYS.items()}, repeat
        )
        steps = _steps((*WORLD, f"model={model}"), max(3, repeat))
        timings |= {f"{model}: {name}": timing for name, timing in (whole | steps).items()}
        serial, alone, together = whole
        gained, ceiling = faster(whole, together, serial), faster(steps, "stacked", "one by one")
        claims += [
            Claim(f"{model}: {together} / {serial}", gained, at_least=wanted),
            Claim(f"{model}: {together} / {alone}", faster(whole, together, alone)),
            Claim(f"{model}: steps of {LANES} lanes / one by one (the ceiling)", ceiling),
            Claim(f"{model}: of the ceiling", gained / ceiling, at_least=0.8),
        ]
    one, several = (_peak_elsewhere(count) for count in (1, GROUP))
    claims.append(Claim("peak memory of one run", one / 2**20, unit="MB"))
    claims.append(Claim(f"peak memory of {GROUP} runs together", several / 2**20, unit="MB"))
    return SuiteResult("together", (*WORLD, *GRID, *words), timings, tuple(claims))


def _steps(words: Sequence[str], repeat: int) -> dict[str, Timing]:
    """The training of fifty clients, stacked and one by one, in one process with one thread."""
    run = run_of(("method=fedavg", *words, f"num_clients={LANES}", "fraction=1.0"))
    calls = first_calls(run)
    samples = trained(run, calls)

    def variant(executor: Executor) -> Variant:
        def work(watch: Stopwatch) -> int:
            with watch:
                executor.map(calls)
            return samples

        return work

    stacked = Vectorised(run.scenario)
    with deterministic("warn"):
        for _ in range(3):  # until its steps are traced, which the grid pays for in its first rounds
            stacked.map(calls)
        return take_turns({"one by one": variant(Serial(run.scenario)), "stacked": variant(stacked)}, repeat)


def peak(count: int) -> int:
    """The peak memory of this process after it has driven `count` runs together for three rounds, in bytes."""
    from fnll.sweep.abreast import Abreast
    from fnll.sweep.grid import PlannedRun

    with temporary_folder() as runs_dir:
        runs = Abreast()
        for seed in range(count):
            words = (
                *WORLD,
                "model=small_cnn",
                "executor=vectorised",
                "rounds=3",
                f"seed={seed}",
                f"runs_dir={runs_dir}",
            )
            runs.add(PlannedRun(words, "fedavg"), lambda event: None)
        while len(runs):
            runs.turn()
        return peak_memory()


def _peak_elsewhere(count: int) -> int:
    command = [sys.executable, "-c", f"from fnll.bench.abreast import peak; print(peak({count}))"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])
