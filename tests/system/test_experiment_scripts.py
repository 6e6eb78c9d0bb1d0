"""The scripts of `experiments/` run with the package as it is: each is imported, those that read runs are run."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from fnll.testing.store import write_run
from tiny import TINY

FOLDER = Path(__file__).parents[2] / "experiments"
SCRIPTS = sorted(FOLDER.rglob("*.py"))
WORLD = [
    *(*TINY, "dataset.samples=240", "dataset.subset=null", "diagnostics_every=0", "fraction=0.5", "rounds=13"),
    "partition.per_client=2",
]


def script(path, monkeypatch):
    """A script as a module, with its own folder to import from, as Python runs it."""
    monkeypatch.syspath_prepend(path.parent)
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_script_can_be_imported_and_says_what_it_is_for(path, monkeypatch):
    module = script(path, monkeypatch)
    assert module.__doc__
    assert callable(module.main)


@pytest.mark.slow  # it draws every figure
def test_a_grid_is_frozen(tmp_path, monkeypatch):
    run_id = write_run(tmp_path / "runs", "fedavg", [0.1, 0.3])
    write_run(tmp_path / "runs", "fedprox", [0.1], ending="failed", note="why")
    monkeypatch.setattr(sys, "argv", ["freeze.py", str(tmp_path / "runs"), str(tmp_path / "kept")])
    script(FOLDER / "freeze.py", monkeypatch).main()
    (line,) = (tmp_path / "kept" / "results.jsonl").read_text().splitlines()
    assert run_id in line
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        "results.jsonl",
        "report.md",
        "curves.png",
        "table.md",
    }


def frozen(method, cell, seed, value):
    return {
        "method": method, "cell": cell, "seed": seed, "command": f"fnll run method={method} {cell} seed={seed}",
        "run_id": f"{method}-{cell}-{seed}", "origin": cell, "checksum": f"{method}{cell}{seed}", "diverged": False,
        "test/accuracy": {"last10": value},
    }  # fmt: skip


def test_a_grid_frozen_in_parts_is_ranked_as_a_whole(tmp_path, monkeypatch):
    freeze = script(FOLDER / "freeze.py", monkeypatch)
    cells = ("clean", "noisy")
    old = [frozen("fedavg", cell, seed, 0.5) for cell in cells for seed in range(3)]
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, old)))
    new = [frozen("fedprox", cell, seed, 0.6) for cell in cells for seed in range(3)]
    again = frozen("fedavg", "noisy", 2, 0.8)
    lines = freeze.joined([*new, again], tmp_path / "results.jsonl")
    assert len(lines) == 12, "the run that was done again counts once"
    assert "| FedAvg | 50.00 ± 0.00 (3) | 60.00 ± 17.32 (3) |" in freeze.table(lines, "test/accuracy")
    ranking = freeze.analyse(freeze.thawed(lines, "test/accuracy")).ranking
    assert len(ranking.blocks) == 6, "each seed of each regime"
    assert ranking.ranks.to_dict() == pytest.approx({"fedprox": 7 / 6, "fedavg": 11 / 6})


def test_the_voters_of_fedrn_and_its_choices_by_noise(tmp_path, monkeypatch, capsys):
    home = FOLDER / "fedrn_digits"
    monkeypatch.setattr(sys, "argv", ["voters.py", *WORLD, f"runs_dir={tmp_path}"])
    script(home / "voters.py", monkeypatch).main()
    header = capsys.readouterr().out.splitlines()[0].split()
    assert header[:4] == ["clients", "noise", "own", "received"]
    monkeypatch.setattr(sys, "argv", ["by_noise_rate.py", str(tmp_path)])
    script(home / "by_noise_rate.py", monkeypatch).main()
    assert capsys.readouterr().out.strip()
