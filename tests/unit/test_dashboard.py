"""The dashboard as code: its panels show keys that runs record, grouped by method."""

import json
from pathlib import Path

import pytest

from fnll.commands.dashboard import PANELS, main
from fnll.errors import UserError

DOCUMENTED = (Path(__file__).parents[2] / "docs/metrics.md").read_text()


def test_every_panel_shows_a_recorded_key():
    for panels in PANELS.values():
        for keys in panels.values():
            assert all(f"`{key}`" in DOCUMENTED for key in keys)


def test_offline_it_is_printed(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert main(["--project", "mine"]) == 0
    board = json.loads(capsys.readouterr().out)
    assert board["project"] == "mine"
    sections = board["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections] == list(PANELS)
    runs = json.dumps(board["spec"]["section"]["runSets"])
    assert '"jobType"' in runs
    assert '"group"' in runs


def test_online_it_needs_an_owner(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with pytest.raises(UserError, match="--entity NAME"):
        main([])
