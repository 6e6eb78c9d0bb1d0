"""Peak memory and checkpoints as the number of clients grows: each run in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from fnll.bench.result import Claim, SuiteResult
from fnll.errors import UserError

MB = 1 << 20
COHORT = 10  # clients in a round, however many there are
FEW, MANY = 10, 1000
STORED = (25, 50, 100)  # clients whose last models FedRN keeps

COMMON = (
    "model=lenet5", "dataset=synthetic", "dataset.size=32", "dataset.channels=3", "dataset.test_samples=1000",
    "local.epochs=1", "executor=serial", "checkpoint_seconds=1e9",
)  # fmt: skip
FEDAVG = (*COMMON, "method=fedavg", "rounds=5", "dataset.samples=20000")
FEDRN = (*COMMON, "method=fedrn", "rounds=40", "method.warmup=36", "eval_every=10", "dataset.samples=5000")


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """LeNet-5: FedAvg with 10 and with 1,000 clients on the same images, FedRN with 25, 50 and 100."""
    return compare(words, repeat, (FEW, MANY), STORED)


def compare(words: Sequence[str], repeat: int, plain: tuple[int, int], stored: Sequence[int]) -> SuiteResult:
    """The runs, for given numbers of clients."""
    fedavg = {n: _least((*FEDAVG, *clients(n), *words), repeat) for n in plain}
    fedrn = {n: _least((*FEDRN, *clients(n), *words), repeat) for n in stored}
    few, many = plain
    more = (fedavg[many]["peak_bytes"] - fedavg[few]["peak_bytes"]) / MB
    largest = fedrn[max(stored)]
    claims = (
        Claim(f"FedAvg, {many} clients: peak memory above {few} clients", more, at_most=200, unit="MB"),
        Claim(f"FedRN, {max(stored)} clients: peak memory", largest["peak_bytes"] / MB, unit="MB"),
        Claim(f"FedRN, {max(stored)} clients: checkpoint", largest["checkpoint_bytes"] / MB, unit="MB"),
        Claim("FedRN: state per stored model", _slope(fedrn, "state_bytes"), unit="models"),
        Claim("FedRN: checkpoint per stored model", _slope(fedrn, "checkpoint_bytes"), unit="models"),
        Claim("FedRN: peak memory per stored model", _slope(fedrn, "peak_bytes"), unit="models"),
    )
    facts = {"fedavg": {str(n): run for n, run in fedavg.items()}, "fedrn": {str(n): run for n, run in fedrn.items()}}
    return SuiteResult("memory", tuple(words), claims=claims, facts=facts)


def clients(n: int) -> tuple[str, ...]:
    """The settings for `n` clients, ten of them in a round."""
    return f"num_clients={n}", f"fraction={min(1.0, COHORT / n)}"


def _least(words: Sequence[str], repeat: int) -> dict[str, Any]:
    """The run with the least peak of `repeat` equal ones: what else the allocator did is noise."""
    return min((_probe(words) for _ in range(repeat)), key=lambda run: run["peak_bytes"])


def _probe(words: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "fnll.bench.probe", *words], capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        raise UserError(f"a run of the suite memory failed ({' '.join(words)}): {last}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _slope(runs: dict[int, dict[str, Any]], key: str) -> float:
    """How many models' worth of bytes one more stored model costs: least squares over the runs."""
    stored = [run["models_stored"] for run in runs.values()]
    models = [run[key] / run["model_bytes"] for run in runs.values()]
    return float(np.polyfit(stored, models, 1)[0])
