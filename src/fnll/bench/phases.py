"""Where the time of a round goes, for any model and method, next to what bare loops over the same batches take."""

from __future__ import annotations

from collections.abc import Sequence

from fnll.bench.bare import Processes, loop, ready_made
from fnll.bench.clock import Clock, instrumented
from fnll.bench.measure import Stopwatch, Variant, deterministic, take_turns
from fnll.bench.result import Claim, SuiteResult, faster
from fnll.bench.subjects import clients_of, first_calls, local_of, observed, run_of
from fnll.errors import UserError
from fnll.federation import federate
from fnll.harness.observer import Observer
from fnll.harness.prepare import Run
from fnll.system.processes import usable_cores

PHASES = ("data", "step", "copy", "aggregate", "evaluate", "method", "logging", "records")
HERE = ("serial", "vectorised")  # executors that do clients' work in this process, where it can be seen


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """One round to warm up and `repeat` rounds of the run that `words` describe, evaluated after every step."""
    run = run_of((*words, "eval_every=1"))
    if run.request.choices["executor"] not in HERE:
        run = run_of((*words, "eval_every=1", "executor=serial"))
    spec, cores, clock = local_of(run), usable_cores(), Clock()
    clients = clients_of(run, first_calls(run))
    batches = ready_made(clients, spec)
    bare, processes, stages = "bare loop", f"a bare process on each of {cores} cores", set[str]()
    with (
        Processes(run.net, spec, clients * cores, cores) as side_by_side,
        deterministic("warn"),
        instrumented(clock),
        observed(run, overlap=False) as observer,
    ):
        one_round = _rounds(run, observer, clock, stages)
        one_round(Stopwatch())
        clock.seconds.clear()
        variants: dict[str, Variant] = {
            "round": one_round,
            bare: lambda watch: loop(run.net, spec, batches, watch),
            processes: side_by_side,
        }
        timings = take_turns(variants, repeat)
    seconds = {name: clock.seconds[name] / repeat for name in PHASES}
    claims = (
        *(Claim(f"round / {yardstick}", faster(timings, "round", yardstick)) for yardstick in (bare, processes)),
        Claim("records and checkpoints / round", seconds["records"] / sum(seconds.values())),
    )
    facts = {
        "method": run.request.name,
        **{group: run.request.choices[group] for group in ("model", "dataset", "executor")},
        "stages": sorted(stages),
        "seconds_per_round": seconds,
        "samples_per_round": sum(timings["round"].samples) / repeat,
    }
    return SuiteResult("phases", tuple(words), timings, claims, facts)


def _rounds(run: Run, observer: Observer, clock: Clock, stages: set[str]) -> Variant:
    """A variant that does the next round each time: the method's part, then evaluation and records."""
    executor = run.executor()
    rounds = federate(run.method, executor, run.world, budget=run.budget, seed=run.cfg.seed)

    def variant(watch: Stopwatch) -> int:
        before = clock.trained
        with watch:
            with clock.phase("method"):
                step = next(rounds, None)
            if step is None:
                raise UserError(f"rounds={run.cfg.rounds} are over before the measurement is; type more rounds")
            with clock.phase("logging"):
                observer.see(*step)
        stages.add(str(step[1].records.get("stage", "train")))
        return clock.trained - before

    return variant
