"""Running `fnll` as a user does: in a process of its own, from a directory of its own."""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import forked

from tiny import TINY as WORLD

TINY = [*WORLD, "rounds=6"]
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    """A real browser, for the pages that we write."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        yield browser
        browser.close()


@contextmanager
def watched(page, address):
    """Open an address; whatever the page says, asks the network for or lets through meanwhile is a failure."""
    heard, asked = [], []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    yield page
    assert page.evaluate("window.hacked") is None
    page.close()
    assert heard == []
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [address]


@pytest.fixture
def fnll(fork_server, tmp_path, tmp_path_factory):
    """Call `fnll` with words in a forked process; returns the completed process."""
    return lambda *words, fate=None: forked(words, tmp_path, tmp_path_factory.mktemp("outputs"), fate)


@pytest.fixture
def python_m_fnll(tmp_path):
    """Call `fnll` with words as a shell does, in a new interpreter: seconds slower than the fixture `fnll`."""

    def call(*words):
        command = [sys.executable, "-m", "fnll", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    return call


@pytest.fixture
def ctrl_c_works():
    """SIGINT interrupts this process and those it starts, as in a terminal; in the background it would be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def timeless(path: Path) -> list[dict]:
    """The rows of a metrics file without what may differ between identical runs."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "sys/"))} for row in rows]


def only_run(runs: Path) -> Path:
    """The one run folder in a store."""
    (run,) = [path for path in runs.iterdir() if path.is_dir() and (path / "config.yaml").exists()]
    return run
