"""The scripts of `experiments/` run with the package as it is: each is imported, those that read runs are run."""

import importlib.util
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
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"results.jsonl", "report.md", "curves.png"}


def test_the_voters_of_fedrn_and_its_choices_by_noise(tmp_path, monkeypatch, capsys):
    home = FOLDER / "fedrn_digits"
    monkeypatch.setattr(sys, "argv", ["voters.py", *WORLD, f"runs_dir={tmp_path}"])
    script(home / "voters.py", monkeypatch).main()
    header = capsys.readouterr().out.splitlines()[0].split()
    assert header[:4] == ["clients", "noise", "own", "received"]
    monkeypatch.setattr(sys, "argv", ["by_noise_rate.py", str(tmp_path)])
    script(home / "by_noise_rate.py", monkeypatch).main()
    assert capsys.readouterr().out.strip()
