"""Modules are moved while a run is unfinished: it resumes under the same name, with the same numbers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import safetensors.torch
from commands import Fate

from conftest import TINY, only_run, timeless
from fnll.federation import Kept
from fnll.harness.choices import config_dir
from fnll.methods.fedcorr import FedCorr
from fnll.methods.fedprox import FedProx
from fnll.testing import same
from fnll.types import State

SOURCE = Path(__file__).resolve().parents[2] / "src"
WORDS = [
    *("run", *TINY, "rounds=12", "checkpoint_seconds=0", "method=fedcorr", "method@method.usual=fedprox"),
    *(f"method.{name}={value}" for name, value in FedCorr.short_run.items()),
]


def moved(home: Path, *modules: str) -> Path:
    """A copy of the source, in `home`, in which each of `modules` lies elsewhere; returns what to import from."""
    shutil.copytree(SOURCE, home / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(config_dir(), home / "configs")
    for module in modules:
        package = home / "src" / module.replace(".", "/")
        file = package if package.is_dir() else package.with_suffix(".py")
        file.rename(file.with_stem(f"{file.stem}_elsewhere"))
    for file in [*home.rglob("*.py"), *home.rglob("*.yaml")]:
        text = file.read_text()
        for module in modules:
            text = re.sub(rf"\b{re.escape(module)}\b", f"{module}_elsewhere", text)
        file.write_text(text)
    return home / "src"


def recorded(run: Path) -> bytes:
    """The rows that the newest checkpoint of an unfinished run counts on, with the times they took."""
    newest = max((run / "checkpoint").glob("snapshot-*.json"))
    length, _ = json.loads(json.loads(newest.read_text())["body"])["records"]["metrics.jsonl"]
    return (run / "metrics.jsonl").read_bytes()[:length]


def test_an_unfinished_run_goes_on_after_a_move(fnll, tmp_path):
    assert fnll(*WORDS, "runs_dir=whole").returncode == 0
    done = fnll(*WORDS, "runs_dir=cut", fate=Fate("checkpoint", 60, 0))
    assert done.returncode == -signal.SIGALRM, done.stderr
    whole, cut = only_run(tmp_path / "whole"), only_run(tmp_path / "cut")
    before = recorded(cut)
    assert 0 < before.count(b"\n") < 12, "the test must have interrupted something"

    place = moved(tmp_path / "home", *{cls.__module__ for cls in (State, Kept, FedCorr, FedProx)})
    command = [sys.executable, "-m", "fnll", *WORDS, "runs_dir=cut"]
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr

    assert only_run(tmp_path / "cut").name == whole.name
    assert f"{FedCorr.__module__}_elsewhere.FedCorr" in (cut / "config.yaml").read_text(), "or nothing was moved"
    assert (cut / "metrics.jsonl").read_bytes().startswith(before), "it did not start over"
    assert timeless(cut / "metrics.jsonl") == timeless(whole / "metrics.jsonl")
    assert same(*(safetensors.torch.load_file(run / "weights.safetensors") for run in (whole, cut)))
