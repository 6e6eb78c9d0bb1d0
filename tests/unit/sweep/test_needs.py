"""What a dry run says of a grid before anything is computed."""

from __future__ import annotations

import pytest

from fnll.cli import main
from fnll.errors import UserError
from fnll.sweep.grid import expand
from fnll.sweep.needs import counted, needed
from fnll.sweep.recall import Recall


def test_data_that_is_missing_is_said_once_with_where_it_goes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FNLL_DATA", str(tmp_path / "data"))
    words = ["experiment=paper/fedcorr_fig4", "method=median", "seed=0", f"runs_dir={tmp_path}", "--dry-run"]
    assert main(["sweep", *words]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "8 runs"
    assert len(lines) == 3  # two data sets, and no line for each run
    assert "data is missing, for 4 runs. CIFAR-10: " in lines[1]
    assert str(tmp_path / "data") in lines[1]
    assert "type dataset.download=true" in lines[1]
    assert "CIFAR-100" in lines[2]


def test_a_table_without_its_data_is_not_begun(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FNLL_DATA", str(tmp_path / "data"))
    words = ["experiment=paper/fedcorr_fig4", "method=median", "seed=0", f"runs_dir={tmp_path / 'runs'}"]
    assert main(["sweep", *words]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "data is missing, for 4 runs. CIFAR-10: " in lines[0]
    assert not (tmp_path / "runs").exists()


def test_a_grid_is_counted_and_its_data_looked_for_once():
    runs = expand(["experiment=paper/fedcorr_table6", "size=mini", "noise.rho=0.6", "method.beta=0.0"]).runs
    assert counted(runs) == "6 runs: 2 cells, 3 seeds"
    looked = []
    (found,) = needed(runs, Recall().compose, looked.append)
    assert str(found) == "data: digits is here, for 6 runs"
    assert len(looked) == 1

    def fails(node):
        raise UserError("no such data")

    (found,) = needed(runs[:1], Recall().compose, fails)
    assert str(found) == "data is missing, for 1 run. no such data"


@pytest.mark.parametrize(("seeds", "text"), [("0", "1 run"), ("range(4)", "4 runs: 1 cell, 4 seeds")])
def test_counts(seeds, text):
    assert counted(expand(["method=fedavg", f"seed={seeds}"]).runs) == text
