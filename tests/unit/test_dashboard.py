"""The dashboard as code: its panels show keys that runs record, grouped by method."""

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from fnll.cli.dashboard import PANELS, main
from fnll.errors import UserError
from fnll.harness.config import compose

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTED = (DOCS / "metrics.md").read_text()


def test_every_panel_shows_a_recorded_key():
    for panels in PANELS.values():
        for key in panels.values():
            assert f"`{key}`" in DOCUMENTED


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


def test_every_run_of_the_documented_wandb_sweep_is_one_of_ours():
    sweep = yaml.safe_load(re.search(r"```yaml\n(.*?)```", (DOCS / "wandb.md").read_text(), re.DOTALL)[1])
    assert sweep["method"] in ("grid", "random", "bayes")  # what W&B knows
    assert sweep["metric"]["goal"] in ("maximize", "minimize")
    name, _, rule = sweep["metric"]["name"].rpartition("/")
    assert f"`{name}`" in DOCUMENTED
    assert rule in ("best", "last", "last10")
    *words, rest = sweep["command"]
    assert (words[:2], rest) == ([sweep["program"], "run"], "${args_no_hyphens}")
    swept = {key: parameter["values"] for key, parameter in sweep["parameters"].items()}
    for values in itertools.product(*swept.values()):
        chosen = [f"{key}={value}" for key, value in zip(swept, values, strict=True)]
        assert "wandb" in compose([*words[2:], *chosen]).cfg.logger
