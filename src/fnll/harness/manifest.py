"""What a run is: its resolved config, and the facts around it (versions, commit, host, scenario)."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fnll import NUMBERS, __version__
from fnll.errors import UserError
from fnll.harness.budget import typed_shares
from fnll.harness.config import Request
from fnll.harness.identity import code_of, settings
from fnll.harness.integrity import MANIFEST
from fnll.harness.making import privileges
from fnll.harness.prepare import Run, numerics_of
from fnll.harness.run_folder import RunFolder
from fnll.harness.secrets import without_secrets
from fnll.scenario.scenario import CLEAN
from fnll.system.files import read_json


def describe(request: Request, folder: RunFolder, device: str, **facts: object) -> None:
    """Write what a run is: the resolved config with the names of the choices, and the facts around it."""
    config: Any = OmegaConf.to_container(request.cfg)
    config = {**without_secrets(config, request.hidden), "choices": request.choices}
    config.pop("sweep", None)  # of the grid, not of the run
    around = {
        "names": request.names,
        "numbers": NUMBERS,
        "numerics": numerics_of(request.cfg),
        "commit": commit(),
        "code": code_of(settings(request)),  # of plugins
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"fnll": __version__, "python": platform.python_version(), **_versions()},
        "host": {
            "platform": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "device": device,
        },
        **facts,
    }
    folder.describe(config, request.command, around)


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    """Looked up once in a process: each takes milliseconds."""
    return {name: version(name) for name in ("torch", "torchvision", "lightning", "scikit-learn", "numpy")}


def facts_of(run: Run) -> dict[str, Any]:
    """What only a prepared run knows about itself."""
    scenario, truth, method = run.scenario, run.truth, run.method
    return {
        "fingerprint": scenario.fingerprint,
        "origin": scenario.origin,
        "dataset": scenario.name,
        "device": str(run.device),
        "paper": (type(method).__doc__ or "").strip().split("\n")[0],
        "privileges": privileges(method),
        "shares": _shares(run),
        "num_clients": len(scenario.shards),
        **({"client_names": scenario.client_names} if scenario.client_names else {}),
        **({"test_truth": truth.test_truth} if truth.test_truth != CLEAN else {}),
        "samples": sum(scenario.sizes),  # that clients train on
        "truth": truth.digest,
        "nominal": truth.nominal,
        "realised": truth.realised,
    }


def require_same_truth(run: Run, folder: RunFolder) -> None:
    """Refuse a folder of the same name whose run had other noise levels or held-out samples.

    Scenario files bring theirs, and neither is part of the fingerprint: what is recorded would belong to either.
    """
    try:
        known = read_json(folder.path / MANIFEST).get("truth")
    except (OSError, ValueError, AttributeError):  # no run yet, or a damaged one, which others explain
        return
    if known not in (None, run.truth.digest):
        raise UserError(
            f"run {folder.run_id} in {folder.path.parent} was computed with other noise levels or held-out samples "
            "than this scenario has, although who has which labels is the same; choose another folder with "
            "runs_dir=DIR, or check where scenario.path comes from"
        )


def _shares(run: Run) -> dict[str, str]:
    """The lengths that were given as percentages; the config has the numbers that came of them."""
    asked, got = (OmegaConf.to_container(request.cfg.method) for request in (run.asked, run.request))
    return typed_shares(asked, got)  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit of the source tree, with `+` if it has uncommitted changes; None when fnll is not run from one.

    Asked once: a process goes on with the code that it began with, whatever is checked out meanwhile.
    """
    git = ["git", "-C", str(Path(__file__).resolve().parents[3])]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, timeout=10)
        if tracked.returncode:
            return None
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
