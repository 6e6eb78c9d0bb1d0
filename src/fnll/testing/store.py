"""Run folders with given numbers in them, for tests and examples: what is in them is made up, their form is real.

They are written by the harness's own `RunFolder`, and `tests/unit/testing/test_store.py` holds their keys against those
of a run that was really trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fnll.harness.integrity import DIAGNOSTICS, METRICS
from fnll.harness.run_folder import RunFolder
from fnll.harness.status import Status

Facts = Sequence[Mapping[str, Any]]

METHODS = {  # share of the gap to clean labels that a method recovers, and what it declares
    "fedavg": (0.0, "McMahan et al., AISTATS 2017", ()),
    "fedprox": (0.08, "Li et al., MLSys 2020", ()),
    "fedrn": (0.55, "Kim et al., CIKM 2022", ("downloads k further models per round",)),
    "fednoro": (0.62, "Wu et al., IJCAI 2023", ("clients upload per-class losses once",)),
    "fedcorr": (0.7, "Xu et al., CVPR 2022", ("clients upload one LID score per pass",)),
    "oracle": (1.0, "McMahan et al., AISTATS 2017", ("true labels",)),
}


def write_run(
    root: Path,
    method: str,
    accuracy: Sequence[float | None],
    *,
    seed: int = 0,
    steps: Sequence[int] = (),
    config: Mapping[str, Any] | None = None,
    choices: Mapping[str, str] | None = None,
    manifest: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Sequence[float | None]] | None = None,
    diagnostics: Facts = (),
    ending: str = Status.FINISHED,
    note: str = "",
) -> str:
    """One run folder whose test accuracy takes the given values; returns its run id.

    `steps` are the places on the evaluation grid where it took them; every one from the first if they are not given.
    `config` and `metrics` override dotted keys and columns. `ending` is a `Status`; `note` is the error of a failed run
    and the reason of a declined one.
    """
    places = list(steps) or list(range(1, len(accuracy) + 1))
    settings = _config(method, seed, max(places, default=0), config or {}, choices or {})
    run_id = f"{method}-{_hash(settings)}"
    scenario = {k: v for k, v in settings.items() if k not in ("method", "choices", "scenario", "local", "seed")}
    command = f"fnll run method={method} seed={seed}"
    facts = _manifest(method, _hash(scenario), settings) | dict(manifest or {})
    folder = RunFolder(root / run_id)
    folder.open()
    try:
        folder.describe(settings, command, facts)
        folder.append(METRICS, _rows(places, accuracy, settings, metrics or {}))
        folder.append(DIAGNOSTICS, diagnostics)
        _end(folder, Status(ending), note, command, settings, facts)
    finally:
        folder.close()
    return run_id


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


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
        "names": {},
        "numbers": 1,
        "numerics": "exact",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "code": {},
        "started": f"2026-01-01T00:00:{settings['seed'] % 60:02d}Z",
        "versions": {"fnll": "0.1.0", "python": "3.11", "torch": "2.9.1"},
        "host": {"platform": "Linux", "processor": "x86_64", "cores": 2, "device": "cpu"},
        "fingerprint": origin if method != "oracle" else hashlib.sha256(origin.encode()).hexdigest()[:12],
        "origin": origin,
        "dataset": settings["choices"]["dataset"],
        "paper": paper,
        "privileges": list(privileges),
        "shares": {},
        "num_clients": clients,
        "samples": 1437,
        "truth": _hash(nominal),
        "nominal": nominal,
        "realised": [round(0.9 * level, 4) for level in nominal],
    }


def _rows(
    places: Sequence[int],
    accuracy: Sequence[float | None],
    settings: Mapping[str, Any],
    extra: Mapping[str, Sequence[float | None]],
) -> list[dict[str, Any]]:
    cohort = max(1, int(settings["fraction"] * settings["num_clients"]))
    size = 40_000
    return [
        {
            "step": at,
            "stage": _stage(settings, at),
            "test/accuracy": value,
            "test/balanced_accuracy": None if value is None else round(value - 0.004, 6),
            "test/loss": None if value is None else round(2.3 * (1 - value), 6),
            "comm/contacts": at * cohort,
            "comm/client_updates": at * cohort,
            "comm/up_bytes": at * cohort * size,
            "comm/down_bytes": at * cohort * size,
            "time/step_s": 0.25,
            "time/total_s": 0.25 * at,
            "time/eval_s": 0.05,
        }
        | {key: values[i] for key, values in extra.items() if values[i] is not None or key.startswith("test/")}
        for i, (at, value) in enumerate(zip(places, accuracy, strict=True))
    ]


def _stage(settings: Mapping[str, Any], t: int) -> str:
    if not str(settings["method"]["_target_"]).endswith("fedcorr"):
        return "train"
    return "preprocessing" if t <= 5 else "finetuning" if t <= settings["rounds"] // 2 else "usual"


def _end(
    folder: RunFolder,
    ending: Status,
    note: str,
    command: str,
    settings: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> None:
    if ending in (Status.FINISHED, Status.DIVERGED):
        facts = {
            "method": settings["choices"]["method"],
            "seed": settings["seed"],
            "run_id": folder.run_id,
            "fingerprint": manifest["fingerprint"],
            "origin": manifest["origin"],
            "exact": True,
            "protocol": settings["protocol"],
        }
        at = len(folder.rows()) if ending is Status.DIVERGED else None
        folder.finish(facts, diverged_at=at, rounds=int(settings["rounds"]))
    elif ending is Status.FAILED:
        folder.mark(ending, {"error": note, "command": command})
    elif ending is Status.DECLINED:
        folder.mark(ending, {"reason": note})
