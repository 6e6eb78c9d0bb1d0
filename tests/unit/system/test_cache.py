"""The cache: built once, read afterwards, made again when damaged, never half written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fnll.errors import UserError
from fnll.system.cache import cache_dir, cached


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Entry:
    """Counts how often it is built."""

    def __init__(self, text: str = "whole") -> None:
        self.text, self.builds = text, 0

    def build(self, folder: Path) -> None:
        self.builds += 1
        (folder / "text").write_text(self.text)

    def load(self, folder: Path) -> str:
        text = (folder / "text").read_text()
        if text != self.text:
            raise ValueError("other text")
        return text


def test_location_comes_from_the_environment(cache, monkeypatch, tmp_path):
    assert cache_dir() == cache
    assert cache.is_dir()
    monkeypatch.delenv("FNLL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "fnll"


def test_a_folder_that_cannot_be_made_is_the_users_to_mend(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match="FNLL_CACHE"):
        cache_dir()


def test_built_once():
    entry = Entry()
    assert [cached("images/a", entry.build, entry.load) for _ in range(3)] == ["whole"] * 3
    assert entry.builds == 1


@pytest.mark.parametrize("damage", [lambda file: file.write_text("hal"), lambda file: file.unlink()])
def test_a_damaged_entry_is_made_again(cache, damage):
    entry = Entry()
    cached("a", entry.build, entry.load)
    damage(cache / "a" / "text")
    assert cached("a", entry.build, entry.load) == "whole"
    assert entry.builds == 2


def test_a_failed_build_leaves_nothing(cache):
    def fail(folder: Path) -> None:
        (folder / "text").write_text("half")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        cached("a", fail, Entry().load)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


def test_concurrent_requests_build_once():
    entry = Entry()
    threads = [threading.Thread(target=cached, args=("a", entry.build, entry.load)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entry.builds == 1
