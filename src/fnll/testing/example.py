"""A made-up grid of runs, for documentation and for trying the report before a sweep has run.

Nothing here is a result. The curves are drawn from formulas, with methods that recover more or less of the accuracy
that label noise takes away; the folders are written by `fnll.testing.store`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fnll.seeding import numpy_rng
from fnll.testing.store import METHODS, write_run

CELLS = ((0.0, 0.0), (0.4, 0.0), (0.4, 0.5), (0.6, 0.0), (0.6, 0.5), (0.8, 0.0), (0.8, 0.5))  # FedCorr's (ρ, τ)


def write_store(
    root: Path,
    methods: Iterable[str] = tuple(METHODS),
    cells: Iterable[tuple[float, float]] = CELLS,
    seeds: int = 5,
    rounds: int = 60,
    dataset: str = "digits",
    partition: str = "iid",
) -> Path:
    """A finished grid of methods × (ρ, τ) × seeds."""
    for method in methods:
        for rho, tau in cells:
            for seed in range(seeds):
                _write_example(root, method, rho, tau, seed, rounds, dataset, partition)
    return root


def _write_example(
    root: Path, method: str, rho: float, tau: float, seed: int, rounds: int, dataset: str, partition: str
) -> None:
    share, *_ = METHODS[method]
    rng = numpy_rng(seed, "example", method, str(rho), str(tau), dataset, partition)
    common = numpy_rng(seed, "example", str(rho), str(tau), dataset).normal(0, 0.004)
    ceiling = 0.965 - (0.05 if partition != "iid" else 0.0)
    harm = 0.5 * rho * (0.5 + 0.5 * tau) ** 1.2
    goal = ceiling - harm * (1 - share) - (0.004 if method != "fedavg" and rho == 0 and share < 1 else 0) + common
    t = np.arange(1, rounds + 1)
    memorised = 0.25 * harm * (1 - share) * np.clip((t - rounds / 2) / rounds, 0, 1)
    curve = 0.1 + (goal - 0.1) * (1 - np.exp(-t / (rounds / 8))) - memorised + rng.normal(0, 0.006, rounds)
    level = rho * (tau + 1) / 2 * 0.9
    write_run(
        root,
        method,
        [round(float(v), 4) for v in np.clip(curve, 0.05, 0.999)],
        seed=seed,
        config={"noise.rho": rho, "noise.tau": tau},
        choices={"dataset": dataset, "partition": partition, "experiment": "rho_tau"},
        metrics=_example_diagnostics(method, share, level, t, rng),
        diagnostics=_example_facts(method, rho, tau, share, rounds, rng),
    )


def _example_diagnostics(
    method: str, share: float, level: float, t: np.ndarray, rng: np.random.Generator
) -> dict[str, list[float | None]]:
    """Curves of a method that learns which labels are wrong, for the methods that try."""
    progress = 1 - np.exp(-t / 12)
    wobble = rng.normal(0, 0.004, len(t))
    found: dict[str, np.ndarray] = {"memory/wrong": level * progress * (1 - share) * 0.8, "memory/true": 0.6 * progress}
    if method == "fedcorr":
        found["labels/noise"] = level * (1 - 0.8 * np.clip((t - 5) / 10, 0, 1))
        found["levels/error"] = 0.2 * np.exp(-t / 15) + 0.02
    if method in ("fedcorr", "fednoro"):
        for name in ("recall", "precision", "f1"):
            found[f"detect/{name}"] = np.clip(0.75 + 0.25 * progress + wobble, 0, 1)
        found["detect/exact"] = (progress > 0.9).astype(float)
    if method in ("fedrn", "fednoro"):
        found["select/precision"] = np.clip(1 - level * (1 - 0.85 * progress) + wobble, 0, 1)
        found["select/recall"] = np.clip(0.7 + 0.25 * progress + wobble, 0, 1)
    return {key: [round(float(v), 4) for v in values] for key, values in found.items()}


def _example_facts(
    method: str, rho: float, tau: float, share: float, rounds: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Internals as FedCorr and FedRN record them."""
    clients = 20
    noisy = round(rho * clients)
    truth = np.array([tau + (1 - tau) * (k + 0.5) / noisy if k < noisy else 0.0 for k in range(clients)]) * 0.9
    facts: list[dict[str, Any]] = []

    def record(at: int, name: str, value: Any) -> None:
        facts.append({"step": at, "t": at, "name": name, "value": value})

    if method == "fedcorr":
        total = np.zeros(clients)
        for at in range(1, 6):
            lid = 3 + 4 * truth + rng.normal(0, 0.4, clients)
            total += lid
            groups = [total[truth == 0], total[truth > 0]]
            record(at, "lid", _rounded(lid))
            record(at, "cumulative_lid", _rounded(total))
            if min(map(len, groups)) > 1:
                parts = {"means": [g.mean() for g in groups], "variances": [g.var() + 0.05 for g in groups]}
                record(at, "lid_gmm", {**parts, "weights": [len(g) / clients for g in groups]})
        record(5, "noise_levels", _rounded(np.clip(truth * 0.4 + rng.normal(0, 0.02, clients), 0, 1) * (truth > 0)))
        record(5, "noisy_clients", [int(k) for k in np.flatnonzero(truth)])
        record(5, "per_client_noise", _rounded(truth * 0.38))
        for at, left in ((0, 1.0), (5, 0.4), (rounds // 2, 0.12)):
            record(at, "confusion", [_confusion(level * left) for level in truth])
    if method == "fedrn":
        accuracy = np.clip(1 - 0.8 * truth + rng.normal(0, 0.03, clients), 0, 1)
        distance = np.abs(np.subtract.outer(np.arange(clients), np.arange(clients)))
        record(rounds // 2, "accuracy", {str(k): v for k, v in enumerate(_rounded(accuracy))})
        record(rounds // 2, "similarity", [_rounded(row) for row in np.exp(-distance / 5)])
    return facts


def _confusion(noise: float, classes: int = 10, samples: int = 90) -> list[list[int]]:
    """Counts (true class, label) of a client whose labels are wrong at random."""
    wrong = round(samples * noise / (classes - 1))
    return [[samples - wrong * (classes - 1) if i == j else wrong for j in range(classes)] for i in range(classes)]


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(float(v), 4) for v in values]
