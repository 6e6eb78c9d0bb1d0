"""Vectorised jobs of the methods themselves, against one client after the other: training steps, and whole jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fnll.bench.clock import Clock, instrumented
from fnll.bench.measure import Stopwatch, Variant, deterministic, take_turns
from fnll.bench.result import Claim, SuiteResult, Timing
from fnll.bench.subjects import play, run_of
from fnll.errors import UserError
from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.federation import Executor
from fnll.harness.prepare import Run
from fnll.types import Call, Update

WORLD = ("dataset=digits", "model=small_cnn", "num_clients=20", "fraction=0.5", "noise.rho=0.6", "noise.tau=0.5")
CASES: dict[str, tuple[str, int, Sequence[str]]] = {  # job, the round whose calls are measured, settings
    "fedcorr, stage 1": ("preprocess", 3, ("method=fedcorr", "method.stage1_cohort=10", "method.passes=2")),
    "fedrn, after its warm-up": ("train", 3, ("method=fedrn", "method.warmup=3")),
    "fednoro, stage 2": ("train", 5, ("method=fednoro", "method.warmup=2")),
}
PHASES = ("data", "step", "copy", "rest")


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """Ten digits clients a round, 5 epochs, batches of 10, small CNN; `words` may change that."""
    timings: dict[str, Timing] = {}
    claims: list[Claim] = []
    seconds: dict[str, dict[str, float]] = {}
    for case, (job, t, own) in CASES.items():
        run = run_of((*WORLD, *own, *words))
        found, phases = _compared(run, calls_of(run, job, t), repeat)
        serial, *others = found
        timings |= {f"{case}: {name}": timing for name, timing in found.items()}
        seconds |= {f"{case}: {name}": parts for name, parts in phases.items()}
        for name in others:
            steps = phases[serial]["step"] / phases[name]["step"]
            claims.append(Claim(f"{case}: steps, {name} / {serial}", steps, at_least=3.0))
            whole = found[serial].best / found[name].best
            claims.append(Claim(f"{case}: whole job, {name} / {serial}", whole, at_least=2.0))
    return SuiteResult("jobs", (*WORLD, *words), timings, tuple(claims), {"seconds": seconds})


@dataclass
class _Listening:
    """Serial, and keeps the calls it was last asked for, by job."""

    serial: Serial
    calls: dict[str, list[Call]] = field(default_factory=dict)
    exact = True

    def map(self, calls: Sequence[Call]) -> list[Update]:
        self.calls |= {calls[0].name: list(calls)} if calls else {}
        return self.serial.map(calls)

    def close(self) -> None:
        self.serial.close()


def calls_of(run: Run, job: str, t: int) -> list[Call]:
    """What the server asks of its clients in round `t` under the name of `job`."""
    listening = _Listening(Serial(run.scenario))
    play(run, listening, t + 1)
    if job not in listening.calls:
        raise UserError(f"method={run.request.name} has not asked for {job} by round {t}")
    return listening.calls[job]


def _compared(run: Run, calls: Sequence[Call], repeat: int) -> tuple[dict[str, Timing], dict[str, dict[str, float]]]:
    clock = Clock()
    spent: dict[str, list[dict[str, float]]] = defaultdict(list)

    def variant(name: str, executor: Executor) -> Variant:
        def run(watch: Stopwatch) -> int:
            clock.seconds.clear()
            with watch, clock.phase("rest"):
                executor.map(calls)
            spent[name].append({phase: clock.seconds[phase] for phase in PHASES})
            return 0

        return run

    executors: dict[str, Executor] = {
        "serial": Serial(run.scenario),
        "vectorised": Vectorised(run.scenario),
    }
    variants = {name: variant(name, executor) for name, executor in executors.items()}
    with deterministic("warn"), instrumented(clock):
        timings = take_turns(variants, repeat)
    best = {name: min(range(repeat), key=lambda i, name=name: timings[name].wall[i]) for name in variants}  # type: ignore[misc]
    return timings, {name: spent[name][best[name]] for name in variants}
