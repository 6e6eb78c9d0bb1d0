"""`fnll new method`: what it writes is accepted by the repository's own tools, and a package grows."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fnll.cli import new
from fnll.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """As much of a checkout as the command and ruff look at."""
    shutil.copytree(ROOT / "src/fnll", tmp_path / "src/fnll", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "configs/method").mkdir(parents=True)
    for name in ("mkdocs.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_in_the_repository_it_is_clean_and_in_the_menu(checkout, capsys):
    assert new.main(["method", "my_idea"]) == 0
    assert "added the page to mkdocs.yml" in capsys.readouterr().out
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *words, "."], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    (methods,) = [
        part["Methods"] for part in yaml.safe_load(Path("mkdocs.yml").read_text())["nav"] if "Methods" in part
    ]
    assert methods[-1] == {"MyIdea": "methods/my_idea.md"}
    assert Path("docs/methods/my_idea.md").exists()
    text = Path("tests/methods/test_my_idea.py").read_text()
    assert "test_contract" not in text, "tests/contract holds every YAML to the rules already"


def test_a_package_takes_a_second_method(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert new.main(["method", "first", "--package", "my-ideas"]) == 0
    before = Path("my-ideas/pyproject.toml").read_text()
    assert new.main(["method", "second", "--package", "my-ideas"]) == 0
    assert Path("my-ideas/pyproject.toml").read_text() == before
    node = yaml.safe_load(Path("my-ideas/src/my_ideas/configs/method/second.yaml").read_text())
    assert node["_target_"] == "my_ideas.second.Second"
    assert "Second" in Path("my-ideas/tests/test_second.py").read_text()
    contract = Path("my-ideas/tests/test_second_contract.py").read_text()
    assert "Second" not in contract, "it must survive another class in the place of the example"
    assert 'subject_of("second")' in contract
    with pytest.raises(UserError, match="exists already; nothing was written"):
        new.main(["method", "second", "--package", "my-ideas"])


@pytest.mark.parametrize(
    ("pyproject", "message"),
    [
        ("[project]\nname = 'x'\n", "brings no configs; add these two lines"),
        ("[project\n", "cannot be read"),
        ("[project.entry-points.'fnll.configs']\nx = 'gone:configs'\n", "there is neither"),
    ],
)
def test_a_folder_that_is_no_package_for_fnll_is_refused(pyproject, message, tmp_path):
    (tmp_path / "pyproject.toml").write_text(pyproject)
    with pytest.raises(UserError, match=message):
        new.main(["method", "idea", "--package", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


def test_a_folder_with_other_things_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="neither empty nor a package"):
        new.main(["method", "idea", "--package", str(tmp_path)])
