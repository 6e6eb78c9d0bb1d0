"""What a round costs beside its clients' own work as the number of clients grows, in each stage of a method.

A client has two small images and ten take part in a round, so that there is little to do but bookkeeping. Work of the
server is a round less the time in which clients are busy; records are what follows it: evaluation (of 100 images),
diagnostics, rows and checkpoints.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fnll.bench.measure import deterministic
from fnll.bench.memory import clients
from fnll.bench.result import Claim, SuiteResult
from fnll.bench.subjects import observed, run_of
from fnll.federation import Executor, federate
from fnll.harness.prepare import Run
from fnll.types import Call, Update

SAMPLES = 2  # of a client
WORLD = (
    "dataset=synthetic", "dataset.size=8", "dataset.channels=1", "dataset.test_samples=100", "model=mlp",
    "model.hidden=[32]", "local.epochs=1", "executor=serial",
)  # fmt: skip
FLAT = (1_000, 100_000)  # clients, for methods whose server forgets them
KEPT = (200, 2_000)  # for methods whose server remembers each
GROWING = {"fedavg": FLAT, "poc": FLAT, "median": FLAT, "fedrn": KEPT, "fedcorr": KEPT}
COUNTED = 20  # rounds in the middle of each stage, at most


@dataclass
class Busy:
    """An executor that adds up how long clients were busy."""

    inner: Executor
    seconds: float = 0.0
    exact: bool = True

    def map(self, calls: Sequence[Call]) -> list[Update]:
        before = time.perf_counter()
        updates = self.inner.map(calls)
        self.seconds += time.perf_counter() - before
        return updates

    def close(self) -> None:
        """Release the workers of the inner one."""
        self.inner.close()


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """FedAvg, Power-of-Choice and Median with up to 100,000 clients, FedRN and FedCorr with up to 2,000."""
    return compare(words, GROWING)


def compare(words: Sequence[str], growing: dict[str, tuple[int, int]]) -> SuiteResult:
    """Each method with few and with many clients."""
    claims: list[Claim] = []
    facts: dict[str, list[tuple[float, float]]] = {}
    for method, counts in growing.items():
        for n in counts:
            for stage, rounds in stages_of(run_of((*settings(method, n), *words))).items():
                name = f"{method}, {stage}, {n} clients"
                server, records = zip(*_middle(rounds), strict=True)
                claims += [
                    Claim(f"{name}: server", 1e3 * statistics.median(server), unit="ms"),
                    Claim(f"{name}: records", 1e3 * statistics.median(records), unit="ms"),
                    Claim(f"{name}: the longest round", 1e3 * max(map(sum, rounds)), unit="ms"),
                ]
                facts[name] = rounds
    return SuiteResult("growth", tuple(words), claims=tuple(claims), facts={"counted": COUNTED, "seconds": facts})


def settings(method: str, n: int) -> tuple[str, ...]:
    """So few rounds that every stage is seen, and so many that most clients have been seen before its middle."""
    common = (*WORLD, f"method={method}", f"dataset.samples={SAMPLES * n}", *clients(n))
    match method:
        case "fedrn":  # nine clients in ten have taken part in the warm-up
            warmup = n // 4
            return (*common, f"method.warmup={warmup}", f"rounds={warmup + 2 * COUNTED}")
        case "fedcorr":  # a pass of stage 1 is n updates
            return (*common, "method.passes=1", f"method.finetune={COUNTED}", f"rounds={n // 10 + 2 * COUNTED}")
        case _:
            return (*common, f"rounds={2 * COUNTED}")


def stages_of(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Seconds of server and of records in every round of a run, by the stage that it belongs to."""
    executor = Busy(run.executor())
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with deterministic("warn"), observed(run, overlap=False) as observer:
        began = time.perf_counter()
        for snapshot, ledger in federate(run.method, executor, run.world, budget=run.budget, seed=run.cfg.seed):
            done = time.perf_counter()
            observer.see(snapshot, ledger)
            server = done - began - executor.seconds
            found[str(ledger.records.get("stage", "train"))].append((server, time.perf_counter() - done))
            executor.seconds, began = 0.0, time.perf_counter()
        observer.settle()
    executor.close()
    return dict(found)


def _middle(rounds: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The rounds in the middle of a stage: its ends have work of their own, and the first ones warm up."""
    start = max(0, (len(rounds) - COUNTED) // 2)
    return rounds[start : start + COUNTED]
