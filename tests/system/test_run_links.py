"""Run folders from somebody else: links in them lead nowhere, and nothing outside the folder changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fnll.errors import UserError
from fnll.harness.execute import execute, prepare_or_record
from fnll.harness.loggers import watchers
from fnll.harness.prepare import Run, prepare
from fnll.sweep.grid import PlannedRun
from fnll.sweep.launchers import check_store
from fnll.sweep.perform import give_up
from tiny import TINY, PowerCut, PowerCutError, compose

WORLD = [*TINY, "rounds=3", "eval.overlap=false", "checkpoint_seconds=0"]


def prepared(store: Path, *words: str) -> Run:
    return prepare(compose([*WORLD, f"runs_dir={store}", *words]))


def resume(store: Path, *words: str) -> None:
    one = prepared(store, *words)
    execute(one, watchers(one.request))


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """What a link may point to."""
    (tmp_path / "docs").mkdir()
    for name in ("thesis.txt", "data.csv", ".old.notes"):
        (tmp_path / "docs" / name).write_text(f"all of {name}")
    return tmp_path / "docs"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that was interrupted after a checkpoint."""
    one = prepared(tmp_path / "runs")
    with pytest.raises(PowerCutError):
        execute(one, [PowerCut(2)])
    return tmp_path / "runs" / one.run_id


def content(docs: Path) -> dict[str, str]:
    return {str(path.relative_to(docs)): path.read_text() for path in docs.rglob("*") if path.is_file()}


def put(link: Path, target: Path) -> None:
    """A link in the place of whatever is there."""
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(target)


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "diagnostics.jsonl"])
def test_a_linked_file_is_refused(run, docs, name):
    before = content(docs)
    put(run / name, docs / "thesis.txt")
    with pytest.raises(UserError, match=f"{name} is a link .*delete the link"):
        resume(run.parent)
    assert content(docs) == before


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint/blobs"])
def test_a_linked_folder_is_refused(run, docs, name):
    before = content(docs)
    put(run / name, docs)
    with pytest.raises(UserError, match=f"{name} is a link .*delete the link"):
        resume(run.parent)
    assert content(docs) == before
    (run / name).unlink()
    resume(run.parent)
    assert (run / "summary.json").exists(), "the message's advice helps"


def test_a_linked_run_folder_is_refused(run, docs):
    before = content(docs)
    put(run, docs)
    with pytest.raises(UserError, match=f"{run.name} is a link"):
        resume(run.parent)
    give_up(PlannedRun((), "fedavg"), str(run), "its process was killed")
    assert content(docs) == before, "with its hidden files, which a killed process may leave in a run's own folder"


def test_a_linked_store_is_the_users_choice(run, tmp_path):
    (tmp_path / "linked").symlink_to(run.parent)
    resume(tmp_path / "linked")
    assert (run / "summary.json").exists()


NAMES = [
    "config.yaml", "manifest.json", "summary.json", "failed.json", "declined.json", "skipped.json",
    "weights.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_the_place_of_a_file_that_is_written_at_once_is_replaced(run, docs, there):
    before = content(docs)
    for name in NAMES:
        if not (there and name == "summary.json"):  # a run with a summary is finished: only read
            put(run / name, docs / ("thesis.txt" if there else "new.txt"))
    for path in (run / "checkpoint/blobs").iterdir():  # these are read, and removed when nothing refers to them
        put(path, docs / ("data.csv" if there else "new.csv"))
    resume(run.parent)
    assert content(docs) == before
    assert not [path for path in run.iterdir() if path.is_symlink()]


@pytest.mark.parametrize("logger", ["csv", "tensorboard", "wandb"])
def test_a_linked_folder_of_a_mirror_is_refused(run, docs, logger):
    before = content(docs)
    put(run / logger, docs)
    with pytest.raises(UserError, match=f"{logger} is a link"):
        resume(run.parent, f"logger={logger}")
    assert content(docs) == before


def test_a_backup_of_hard_links_stays_as_it_is(run, tmp_path):
    backup = shutil.copytree(run, tmp_path / "backup", copy_function=os.link)
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    resume(run.parent)
    assert (run / "summary.json").exists()
    assert {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()} == before


def test_the_record_of_a_failed_attempt_is_removed_but_not_through_a_link(tmp_path, docs):
    before = content(docs)
    request = compose([*WORLD, f"runs_dir={tmp_path / 'runs'}", "num_clients=5000"])
    with pytest.raises(UserError, match="num_clients=5000"):
        prepare_or_record(request)
    (failed,) = (tmp_path / "runs").iterdir()
    put(failed, docs)
    with pytest.raises(UserError, match=f"{failed.name} is a link"):
        prepare_or_record(request)
    assert content(docs) == before


def test_trying_a_store_out_follows_no_link(tmp_path, docs):
    before = content(docs)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / f".probe-{os.getpid()}").symlink_to(docs / "thesis.txt")
    with pytest.raises(UserError, match="is a link"):
        check_store(tmp_path / "runs")
    assert content(docs) == before
