"""Files of a run: links are refused and left alone, names are plain, a kill leaves old content or new."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fnll.errors import UserError
from fnll.system.files import (
    cut_back,
    inside,
    open_own,
    own_folder,
    plain_name,
    refuse_links_out,
    remove_folder,
    remove_leftovers,
    write_atomic,
)

BAD_NAMES = ["..", ".", "", "a/b", "/tmp", "../a", "a\\b", "~", "$HOME", ".hidden", "a.b", "-x", "a b", "a\n", "x" * 65]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with a file that nobody may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "thesis").write_text("years of work")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def untouched(outside: Path) -> bool:
    return [(path.name, path.read_text()) for path in outside.iterdir()] == [("thesis", "years of work")]


@pytest.mark.parametrize("value", [*BAD_NAMES, None, 3, True, ["a"]])
def test_only_one_plain_name_is_a_name(value):
    with pytest.raises(UserError, match=r"^a\.key must be one plain name .*; type this$") as caught:
        plain_name("a.key", value, "type this")
    assert repr(value) in str(caught.value)


def test_a_plain_name_is_returned_unless_it_is_taken():
    assert plain_name("a.key", "My_curves-2", "type this", {"checkpoint"}) == "My_curves-2"
    for taken in ("checkpoint", "Checkpoint"):
        with pytest.raises(UserError, match=f"a.key={taken} is taken already.*type this"):
            plain_name("a.key", taken, "type this", {"checkpoint"})


@pytest.mark.parametrize("mode", ["a", "w", "r+b", "wb"])
@pytest.mark.parametrize("target", ["thesis", "not-there"])
def test_opening_follows_no_link(run, outside, mode, target):
    (run / "lock").symlink_to(outside / target)
    with pytest.raises(UserError, match=r"run/lock is a link \(to .*delete the link"):
        open_own(run / "lock", mode)
    assert untouched(outside)


@pytest.mark.parametrize("mode", ["a", "r+b"])
def test_a_pipe_is_no_file_and_nobody_waits_for_its_other_end(run, mode):
    os.mkfifo(run / "lock")
    with pytest.raises(UserError, match="run/lock is no plain file"):
        open_own(run / "lock", mode)


def test_opening_makes_files_with_usual_rights(run):
    with open_own(run / "rows", "a") as file:
        file.write("one\n")
    with open_own(run / "rows", "a") as file:
        file.write("two\n")
    (run / "usual").touch()
    assert (run / "rows").read_text() == "one\ntwo\n"
    assert (run / "rows").stat().st_mode == (run / "usual").stat().st_mode


def test_cutting_follows_no_link(run, outside):
    (run / "rows").symlink_to(outside / "thesis")
    with pytest.raises(UserError, match="is a link"):
        cut_back(run / "rows", 3)
    assert untouched(outside)


def test_cutting_leaves_a_files_other_names_alone(run, outside):
    os.link(outside / "thesis", run / "rows")
    cut_back(run / "rows", 5)
    assert (run / "rows").read_text() == "years"
    with open_own(run / "rows", "a") as file:
        file.write("!")
    assert untouched(outside)


def test_cutting_keeps_the_file_that_is_there(run):
    (run / "rows").write_text("years of work")
    before = (run / "rows").stat().st_ino
    cut_back(run / "rows", 5)
    assert (run / "rows").read_text() == "years"
    assert (run / "rows").stat().st_ino == before
    with pytest.raises(FileNotFoundError):
        cut_back(run / "none", 0)


@pytest.mark.parametrize("act", [own_folder, remove_folder, refuse_links_out])
@pytest.mark.parametrize("target", ["", "not-there"])
def test_a_linked_folder_is_refused(run, outside, act, target):
    (run / "blobs").symlink_to(outside / target)
    with pytest.raises(UserError, match="run/blobs is a link"):
        act(run / "blobs")
    assert (run / "blobs").is_symlink()
    assert untouched(outside)


def test_links_that_stay_inside_are_harmless(run, outside):
    (run / "wandb/offline-run-1").mkdir(parents=True)
    (run / "wandb/latest-run").symlink_to("offline-run-1")
    (run / "wandb/loop").symlink_to("loop")
    refuse_links_out(run / "wandb")
    refuse_links_out(run / "none")
    (run / "wandb/offline-run-1/debug-core.log").symlink_to(outside / "thesis")  # W&B's own, to the user's cache
    refuse_links_out(run / "wandb")
    (run / "wandb/offline-run-2").symlink_to(outside)
    with pytest.raises(UserError, match="wandb/offline-run-2 is a link"):
        refuse_links_out(run / "wandb")


def test_removing_follows_no_link_inside(run, outside):
    (run / "csv").mkdir()
    (run / "csv/out").symlink_to(outside)
    remove_folder(run / "csv")
    assert not (run / "csv").exists()
    assert untouched(outside)


def test_a_link_is_replaced_by_what_is_written(run, outside):
    (run / "summary.json").symlink_to(outside / "thesis")
    write_atomic(run / "summary.json", "{}")
    assert not (run / "summary.json").is_symlink()
    assert untouched(outside)


@pytest.mark.parametrize("names", [("..",), ("a", ".."), ("",), (".",), ("a/b",), ("/tmp",), ("a\0b",), ("a\\b",)])
def test_a_place_inside_has_single_names(run, names):
    with pytest.raises(UserError, match="is no name of something in"):
        inside(run, *names)


def test_a_place_inside_is_not_behind_a_link(run, outside):
    (run / "tables").symlink_to(outside)
    with pytest.raises(UserError, match="is a link"):
        inside(run, "tables", "main.csv")
    assert inside(run, "figures", "main.csv") == run / "figures" / "main.csv"


def test_only_our_own_leftovers_are_removed(run):
    kept = [".notes.txt", ".a.b", "x.partial", ".y.partial", ".z.tooshort.partial.txt"]
    for name in kept:
        (run / name).touch()
    (run / ".folder.abcdefgh.partial").mkdir()
    (run / ".summary.json.ab_12xyz.partial").touch()
    remove_leftovers(run)
    assert {path.name for path in run.iterdir()} == {*kept, ".folder.abcdefgh.partial"}


def test_a_killed_write_leaves_what_is_recognised(run, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr("fnll.system.files.remove_file", lambda path: None)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(run / "summary.json", "new")
    monkeypatch.undo()
    assert len(list(run.iterdir())) == 1
    remove_leftovers(run)
    assert not list(run.iterdir())
