"""The documentation says nothing that a command contradicts: every code block is run, page by page.

A block whose first line is `# file: NAME` is written to that file; `bash` blocks are run; other YAML must parse; `text`
and `console` blocks are pictures. Commands that install or build (`make`, `pip`, `git`) are checked by name.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from fnll.harness.choices import GROUPS, config_dir, options
from fnll.harness.config import compose
from fnll.harness.execute import execute
from fnll.harness.mistakes import known_keys
from fnll.harness.prepare import prepare
from tiny import TINY

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.M | re.S)
CHECKED_BY_NAME = ("make", "pip", "git", "pre-commit", "python", "source", "wandb", "cd", "sbatch", "srun", "ray")


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


def commands(text: str) -> list[str]:
    lines = [line.split("  #")[0].strip() for line in text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def first_word(command: str) -> str:
    return next(word for word in command.split() if "=" not in word)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_run(page, tmp_path):
    bin = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    for kind, text in blocks(page):
        named = re.match(r"# file: (\S+)", text)
        if named:
            path = tmp_path / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif kind == "yaml":
            yaml.safe_load(text)
        elif kind == "python":
            subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=env, check=True, timeout=300)
        elif kind == "bash":
            by_name = [first_word(command) in CHECKED_BY_NAME for command in commands(text)]
            for command in commands(text) if any(by_name) else [text]:  # a block may be one loop over several lines
                if any(by_name) and first_word(command) in CHECKED_BY_NAME:
                    continue
                done = subprocess.run(
                    ["bash", "-ec", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500
                )
                assert done.returncode == 0, f"{page.name}: {command}\n{done.stdout}{done.stderr}"
        else:
            assert kind in ("text", "console", "toml", "latex"), f"{page.name} has a block of {kind!r}"


OURS = "|".join(GROUPS)
CHOICE = re.compile(rf"(?<![\w.@])({OURS})=([a-z][\w,/]*)(?![\w<(])")
SETTING = re.compile(rf"(?<![\w./@+])((?:{OURS}|eval|sweep)(?:\.[a-z_0-9]+)+)(?![\w/])")
EXAMPLES = {
    "experiment=mine", "method=mine", "scenario.json",
    "method.usual.mu", "method.usual.alpha", "method.usual.alpha_of_client", "method.usual.candidates",
}  # fmt: skip


def typed(page: Path) -> str:
    """Whatever a page shows as typed at a prompt: commands in blocks of any kind, and words in code type."""
    text = page.read_text()
    shown = [block for kind, block in re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.M | re.S)
             if kind in ("", "bash", "console")]  # fmt: skip
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return "\n".join([*shown, *re.findall(r"`([^`\n]+)`", rest)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_choices_and_settings_exist(page):
    """Every `group=choice` and every `group.setting` of a page, also in commands too long to run here."""
    own = set(re.findall(r"# file: configs/(\w+)/(\w+)\.yaml", page.read_text()))
    for group, names in CHOICE.findall(typed(page)):
        for name in names.strip(",").split(","):
            known = (config_dir() / group / f"{name}.yaml").exists() or (group, name) in own
            assert known or f"{group}={name}" in EXAMPLES, f"there is no {group}={name}"
    for key in set(SETTING.findall(typed(page))) - EXAMPLES:
        assert key in known_keys(key), f"there is no setting {key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for kind, text in blocks(page):
        for command in commands(text) if kind == "bash" else []:
            if command.startswith("make"):
                assert {word for word in command.split()[1:] if "=" not in word} <= targets, command


def test_the_pages_have_what_is_looked_for():
    """Or the tests above would look at nothing, and pass."""
    text = "\n".join(map(typed, PAGES))
    assert len(CHOICE.findall(text)) > 100
    assert len(set(SETTING.findall(text)) - EXAMPLES) > 50
    shown = [command for page in PAGES for kind, text in blocks(page) if kind == "bash" for command in commands(text)]
    assert sum(command.startswith("make") for command in shown) > 5


def test_every_method_has_a_page_and_a_place_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    for name in options("method"):
        base = "oracle" if name.startswith("oracle") else re.sub("_(official|plus|gradient)$", "", name)
        assert (ROOT / f"docs/methods/{base}.md").exists(), base
        assert name in (ROOT / f"docs/methods/{base}.md").read_text(), f"{base}.md does not name {name}"
        assert f"methods/{base}.md" in menu


NOISY = [*TINY, "dataset.samples=240", "num_clients=8", "noise.rho=0.6", "noise.tau=0.5"]
RECORDING = {  # settings under which eight rounds pass through every stage and record all that there is to record
    "fedavg": ["dataset.validation=0.2", "dataset.classes=6", "diagnostics_uploads=true"],
    "fedcorr": ["method.passes=2", "method.finetune=2"],
    "fedrn": ["method.warmup=2"],
    "fednoro": ["method.warmup=2"],
}


def test_every_recorded_key_is_documented(tmp_path):
    """Runs say what is recorded, the page says what it means: neither knows a name that the other does not."""
    found = {"summary": set(), "metrics": set(), "facts": set()}
    for name, settings in RECORDING.items():
        words = [f"method={name}", *NOISY, "rounds=8", "diagnostics_every=4", f"runs_dir={tmp_path}", *settings]
        folder = tmp_path / prepared(words)
        found["summary"] |= json.loads((folder / "summary.json").read_text()).keys()
        for file, part in (("metrics.jsonl", "metrics"), ("diagnostics.jsonl", "facts")):
            for row in map(json.loads, (folder / file).read_text().splitlines()):
                found[part] |= set(row) if part == "metrics" else {row["name"]}
    page = (ROOT / "docs/metrics.md").read_text()
    keys, _, facts = page.partition("## Facts")
    facts = facts.partition("## What a job")[0]
    listed = {"metrics": first_cells(keys.partition("`summary.json`")[0]), "facts": first_cells(facts)}
    assert found["metrics"] == listed["metrics"]
    assert found["facts"] == listed["facts"]
    assert not {key for key in found["summary"] if f"`{key}`" not in page}


def prepared(words: list[str]) -> str:
    run = prepare(compose(words))
    execute(run)
    return run.run_id


def first_cells(text: str) -> set[str]:
    """The names in the first column of the tables in `text`."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}


def test_the_site_builds_without_warnings(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 10
    outside = [p.name for p in pages if re.search(r'(?:src|href)="https?://[^"]+\.(?:js|css|woff2?)"', p.read_text())]
    assert not outside, "pages load nothing from elsewhere"


def test_the_picture_of_the_house_has_the_rooms_that_the_linter_knows() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    drawn = re.findall(r'font-weight="600">([^<]+)<', (ROOT / "docs/images/house.svg").read_text())
    rooms = [set(re.findall(r"\w+", layer)) for layer in layers]
    found = [room for text in drawn for room in text.split()]
    assert len(found) == sum(map(len, rooms))
    start = 0
    for layer in rooms:  # from top to bottom
        assert set(found[start : start + len(layer)]) == layer
        start += len(layer)
