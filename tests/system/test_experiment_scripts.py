"""The scripts of `experiments/` run with the package as it is: each is imported, those that read runs are run."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fnll.scenario.noise.label_maps import CIFAR10
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


@pytest.fixture
def audit(tmp_path, monkeypatch):
    """The script that scores review lists, with results of its own and two rounds."""
    module = script(FOLDER / "audit_digits" / "run.py", monkeypatch)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results.csv")
    monkeypatch.setattr(module, "EVIDENCE", tmp_path / "evidence.json")
    monkeypatch.setattr(module, "ROUNDS", 2)
    return module


def test_review_lists_are_scored_once_and_in_order(audit, tmp_path, capsys):
    wanted = audit.cases(1, ["symmetric"], [4], ["fedcorr", "fedavg"])
    audit.measure(wanted[1:], audit.Place(tmp_path), jobs=1)
    audit.measure(wanted, audit.Place(tmp_path), jobs=1)
    said = capsys.readouterr().out
    assert "1 of 1: fedcorr, symmetric-4-0" in said, "FedAvg is not asked again"
    assert "no scores of fedcorr, symmetric-4-0: fedcorr declines this budget" in said
    rows = pd.read_csv(tmp_path / "results.csv")
    assert rows["method"].tolist() == ["confident learning", "fedavg"]
    assert rows["judges"].tolist() == [True, False]
    assert rows["find/auc"].between(0, 1).all()
    for run_id in rows["runs"][0].split():
        assert (tmp_path / "runs" / run_id / "summary.json").exists()


def test_work_on_review_lists_goes_seed_by_seed(audit):
    found = audit.cases(2, [*audit.NOISE, *audit.HUMAN], [10, 4], [])
    assert [case.seed for case in found] == sorted(case.seed for case in found)
    everybody = {case.method for case in found if case.noise == "h-idn" and case.sites == 10}
    assert everybody == set(audit.methods())
    for noise, sites in (("h-idn", 4), ("human worst", 10)):
        assert {one.method for one in found if (one.noise, one.sites) == (noise, sites)} == {"fedavg", *audit.FEW}


def test_scores_of_review_lists_become_a_table_and_evidence(audit, tmp_path, capsys):
    scored = [
        ("symmetric", 0, "confident learning", True, 0.8), ("symmetric", 1, "confident learning", True, 0.9),
        ("symmetric", 0, "fedrn", True, 0.7), ("symmetric", 0, "fedavg", False, 0.6),
        ("human worst", 0, "confident learning", True, 0.2), ("human worst", 0, "fedrn", True, 0.1),
    ]  # fmt: skip
    lines = [
        {
            "noise": noise,
            "sites": 10,
            "seed": seed,
            "method": method,
            "judges": judges,
            **dict.fromkeys(audit.KEYS, auc),
        }
        for noise, seed, method, judges, auc in scored
    ]
    pd.DataFrame(lines).assign(**{"find/accused": None}).to_csv(tmp_path / "results.csv", index=False)
    audit.summarise()
    said = capsys.readouterr().out
    assert "| 10 | symmetric | confident learning | 2 | 0.85 | 0.85 ± 0.071 | 0.85 |" in said
    assert "| 10 | symmetric | fedavg * | 1 | 0.6 | 0.6 | 0.6 |" in said
    assert " – |" in said
    area = json.loads((tmp_path / "evidence.json").read_text())["area"]
    assert area == {"confident learning": [0.85, 0.85, 2], "fedrn": [0.7, 0.8, 1]}, "of digits, on the same tables"


def test_human_labels_become_a_table_with_pictures(audit, tmp_path, monkeypatch):
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(audit, "PICTURES", 20)
    clean = np.arange(40) % 10
    for i, c in enumerate(clean):
        for part in ("train", "test"):
            path = tmp_path / "data" / part / CIFAR10[c] / f"{i // 10}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (int(c), i, 0)).save(path)
    worse = {"worse_label": (clean + 1) % 10, "aggre_label": clean}
    labels = {"clean_label": clean, **{f"random_label{k}": clean for k in (1, 2, 3)}, **worse}
    np.savez(tmp_path / "data" / "CIFAR-10_human.npz", **labels)
    place = audit.Place(tmp_path / "store", str(tmp_path / "data"))
    path = audit.table(audit.Case("human worst", 2, 0, "fedavg"), place)
    rows = pd.read_csv(path)
    assert sorted(rows["client"].unique()) == ["site 00", "site 01"]
    assert len(rows) == 20
    for row in rows.itertuples():
        c, i, _ = Image.open(path.parent / row.file).getpixel((0, 0))
        assert (row.clean_label, row.label) == (CIFAR10[c], CIFAR10[(c + 1) % 10])
        assert i % 10 == c
