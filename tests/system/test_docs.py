"""The documentation says nothing that a command contradicts: every code block is run, page by page.

A block whose first line is `# file: NAME` is written to that file; `bash` blocks are run; other YAML must parse; `text`
and `console` blocks are pictures. Commands that install or build (`make`, `pip`, `git`) are checked by name.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fnll.config import options

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.M | re.S)
CHECKED_BY_NAME = ("make", "pip", "git", "pre-commit", "python", "wandb", "cd", "sbatch", "srun", "ray")


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for kind, text in blocks(page):
        for command in commands(text) if kind == "bash" else []:
            if command.startswith("make"):
                assert {word for word in command.split()[1:] if "=" not in word} <= targets, command


def test_every_method_has_a_page_and_a_place_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    for name in options("method"):
        base = name.removesuffix("_official")
        if base == "oracle":
            continue
        assert (ROOT / f"docs/methods/{base}.md").exists(), base
        assert f"methods/{base}.md" in menu


def test_every_recorded_key_is_documented():
    documented = (ROOT / "docs/metrics.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "src/fnll").glob("*.py"))
    keys = set(re.findall(r'"((?:test|val|comm|select|labels|detect|levels|memory|time)/[a-z0-9_]+)"', source))
    assert keys
    assert not {key for key in keys if f"`{key}`" not in documented}


@pytest.mark.slow
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
