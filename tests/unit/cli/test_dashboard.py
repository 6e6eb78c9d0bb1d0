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

DOCS = Path(__file__).parents[3] / "docs"
DOCUMENTED = (DOCS / "metrics.md").read_text()


def test_every_panel_shows_a_recorded_key():
    for panels in PANELS.values():
        for key in panels.values():
            assert f"`{key}`" in DOCUMENTED


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


def test_offline_it_is_a_file_and_says_how_to_use_it(offline, capsys):
    assert main(["--project", "my project"]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 4
    assert "written to dashboard.json: Accuracy (" in said
    assert "  wandb login\n  fnll dashboard --file dashboard.json --entity NAME --project 'my project'" in said
    assert json.loads(Path("dashboard.json").read_text())["entity"] == ""


def test_a_file_is_taken_as_it_is_edited(offline, capsys):
    main(["--out", "board.json"])
    board = json.loads(Path("board.json").read_text())
    sections = board["spec"]["section"]["panelBankConfig"]["sections"]
    sections[0]["name"] = "Mine"
    Path("board.json").write_text(json.dumps(board))
    capsys.readouterr()
    main(["--file", "board.json", "--entity", "me", "--project", "other", "--print"])
    again = json.loads(capsys.readouterr().out)
    assert (again["entity"], again["project"]) == ("me", "other")
    assert again["spec"] == board["spec"]


@pytest.mark.parametrize("content", ["{}", "no", ""])
def test_another_file_is_refused(offline, content):
    Path("other.json").write_text(content)
    with pytest.raises(UserError, match="no dashboard that `fnll dashboard` wrote"):
        main(["--file", "other.json"])
    with pytest.raises(UserError, match="cannot read"):
        main(["--file", "nowhere.json"])


def test_the_sketch_in_the_docs_has_the_sections_of_the_dashboard():
    sketch = (DOCS / "images" / "dashboard.svg").read_text()
    assert re.findall(r'class="section"[^>]*>([^<]*)<', sketch) == list(PANELS)


def test_it_can_be_printed(offline, capsys):
    assert main(["--project", "mine", "--print"]) == 0
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
