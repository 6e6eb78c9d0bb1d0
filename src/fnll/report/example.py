"""Made-up runs in the form real ones have: for tests, documentation, and trying the report before a sweep has run.

Nothing here is a result. The curves are drawn from formulas, with methods that recover more or less of the accuracy
that label noise takes away.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fnll.harness.integrity import FORMAT, seal
from fnll.seeding import numpy_rng
from fnll.system.files import make_folder, write_file

Facts = Sequence[Mapping[str, Any]]

METHODS = {  # share of the gap to clean labels that a method recovers, and what it declares
    "fedavg": (0.0, "McMahan et al., AISTATS 2017", ()),
    "fedprox": (0.08, "Li et al., MLSys 2020", ()),
    "fedrn": (0.55, "Kim et al., CIKM 2022", ("downloads k further models per round",)),
    "fednoro": (0.62, "Wu et al., IJCAI 2023", ("clients upload per-class losses once",)),
    "fedcorr": (0.7, "Xu et al., CVPR 2022", ("clients upload one LID score per pass",)),
    "oracle": (1.0, "McMahan et al., AISTATS 2017", ("true labels",)),
}
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


def write_run(
    root: Path,
    method: str,
    accuracy: Sequence[float | None],
    *,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    choices: Mapping[str, str] | None = None,
    manifest: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Sequence[float | None]] | None = None,
    diagnostics: Facts = (),
    ending: str = "finished",
    note: str = "",
) -> str:
    """One run folder whose test accuracy takes the given values; returns its run id.

    `config` overrides dotted keys. `ending` is finished, diverged, failed, declined or unfinished; `note` is the error
    of a failed run and the reason of a declined one.
    """
    settings = _config(method, seed, len(accuracy), config or {}, choices or {})
    run_id = f"{method}-{hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]}"
    folder = root / run_id
    make_folder(folder)
    write_file(folder / "config.yaml", yaml.safe_dump(settings, sort_keys=False))
    scenario = {k: v for k, v in settings.items() if k not in ("method", "choices", "scenario", "local", "seed")}
    origin = hashlib.sha256(json.dumps(scenario, sort_keys=True).encode()).hexdigest()[:12]
    command = f"fnll run method={method} seed={seed}"
    facts = {"run_id": run_id, "command": command} | _manifest(method, origin, settings) | dict(manifest or {})
    write_file(folder / "manifest.json", json.dumps(facts, indent=2))
    steps = _steps(accuracy, settings, metrics or {})
    write_file(folder / "metrics.jsonl", "".join(json.dumps(step) + "\n" for step in steps))
    if diagnostics:
        write_file(folder / "diagnostics.jsonl", "".join(json.dumps(fact) + "\n" for fact in diagnostics))
    _end(folder, ending, note, _summary(run_id, method, seed, facts, steps))
    return run_id


def _config(
    method: str, seed: int, rounds: int, overrides: Mapping[str, Any], choices: Mapping[str, str]
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "dataset": {"_target_": "fnll.scenario.datasets.digits", "subset": None},
        "partition": {"_target_": "fnll.scenario.partition.partitions.Iid", "min_size": 1},
        "noise": {"_target_": "fnll.scenario.noise.models.RhoTau", "rho": 0.6, "tau": 0.5},
        "model": {"_target_": "fnll.models.small.small_cnn"},
        "local": {"_target_": "fnll.local.Sgd", "epochs": 5, "batch_size": 10, "lr": 0.05, "momentum": 0.5},
        "method": {"_target_": f"fnll.methods.{method}", "_partial_": True},
        "scenario": {"oracle": "true_labels" if method == "oracle" else "none", "pooled": False},
        "executor": {"_target_": "fnll.executors.Serial"},
        "num_clients": 20,
        "fraction": 0.5,
        "rounds": rounds,
        "seed": seed,
        "scenario_seed": seed,
        "eval_every": 1,
        "protocol": "shared",
        "runs_dir": "runs",
    }
    for key, value in overrides.items():
        *groups, leaf = key.split(".")
        place = settings
        for group in groups:
            place = place.setdefault(group, {})
        place[leaf] = value
    chosen = {"method": method, "dataset": "digits", "partition": "iid", "noise": "rho_tau", "model": "small_cnn"}
    return settings | {"choices": {**chosen, **choices}}


def _manifest(method: str, origin: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    _, paper, privileges = METHODS.get(method, (0.0, "", ()))
    clients = int(settings["num_clients"])
    noisy = round(float(settings["noise"].get("rho") or 0) * clients)
    tau = float(settings["noise"].get("tau") or 0)
    nominal = [round(tau + (1 - tau) * (k + 0.5) / noisy, 4) if k < noisy else 0.0 for k in range(clients)]
    return {
        "format": FORMAT,
        "versions": {"fnll": "0.1.0", "python": "3.11", "torch": "2.9.1"},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "host": {"cpus": 2, "system": "Linux"},
        "fingerprint": origin if method != "oracle" else hashlib.sha256(origin.encode()).hexdigest()[:12],
        "origin": origin,
        "numbers": 1,
        "started": f"2026-01-01T00:00:{settings['seed'] % 60:02d}Z",
        "privileges": list(privileges),
        "paper": paper,
        "num_clients": clients,
        "nominal": nominal,
        "realised": [round(0.9 * level, 4) for level in nominal],
    }


def _steps(
    accuracy: Sequence[float | None], settings: Mapping[str, Any], extra: Mapping[str, Sequence[float | None]]
) -> list[dict[str, Any]]:
    cohort = max(1, int(settings["fraction"] * settings["num_clients"]))
    size = 40_000
    return [
        {
            "step": t,
            "stage": _stage(settings, t),
            "test/accuracy": value,
            "test/balanced_accuracy": None if value is None else round(value - 0.004, 6),
            "test/loss": None if value is None else round(2.3 * (1 - value), 6),
            "comm/client_updates": t * cohort,
            "comm/contacts": t * cohort,
            "comm/up_bytes": t * cohort * size,
            "comm/down_bytes": t * cohort * size,
            "time/step_s": 0.25,
            "time/total_s": 0.25 * t,
        }
        | {key: values[t - 1] for key, values in extra.items() if values[t - 1] is not None}
        for t, value in enumerate(accuracy, 1)
    ]


def _stage(settings: Mapping[str, Any], t: int) -> str:
    if not str(settings["method"]["_target_"]).endswith("fedcorr"):
        return "train"
    return "preprocessing" if t <= 5 else "finetuning" if t <= settings["rounds"] // 2 else "usual"


def _summary(
    run_id: str, method: str, seed: int, manifest: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    summary = {"method": method, "seed": seed, "run_id": run_id, "finished": True, "diverged": False, "exact": True}
    summary |= {key: manifest[key] for key in ("fingerprint", "origin")}
    for key, best in (("test/accuracy", max), ("test/balanced_accuracy", max), ("test/loss", min)):
        values = [step[key] for step in steps if step[key] is not None]
        if values:
            last10 = float(np.mean(values[-10:]))
            summary[key] = {"best": best(values), "last": values[-1], "last10": last10}
    return summary | {"time/total_s": steps[-1]["time/total_s"] if steps else None}


def _end(folder: Path, ending: str, note: str, summary: dict[str, Any]) -> None:
    if ending == "diverged":
        for value in summary.values():
            if isinstance(value, dict):
                value.update(last=None, last10=None)
    if ending in ("finished", "diverged"):
        seal(folder, summary | {"diverged": ending == "diverged"}, durable=False)
    elif ending == "failed":
        write_file(folder / "failed.json", json.dumps({"error": note, "command": "fnll run"}))
    elif ending == "declined":
        write_file(folder / "declined.json", json.dumps({"reason": note}))


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
