"""Forged checkpoints, each with a valid checksum: the run falls back, starts over or says no, without crash or hang.

One that is consistent in itself (other weights of the right shapes, a later round) cannot be told: hashes are no
signatures.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fnll.harness.checkpoint import Checkpoints, Restored
from fnll.harness.config import compose
from fnll.harness.execute import _restored as restored
from fnll.harness.execute import execute
from fnll.harness.prepare import Run, prepare
from fnll.harness.run_folder import RunFolder
from fnll.system.foreign import digest
from tiny import TINY, PowerCut, PowerCutError

WORDS = [*TINY, "rounds=4", "eval.overlap=false", "checkpoint_seconds=0", "diagnostics_every=0"]
Body = dict[str, Any]


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was cut off after its third round, with two checkpoints."""
    run = prepare(compose([*WORDS, f"runs_dir={tmp_path_factory.mktemp('cut')}"]))
    with pytest.raises(PowerCutError):
        execute(run, [PowerCut(after=3)])
    return run


@pytest.fixture
def folder(halfway: Run, tmp_path: Path) -> RunFolder:
    """A copy of its folder."""
    shutil.copytree(Path(halfway.cfg.runs_dir) / halfway.run_id, tmp_path / halfway.run_id)
    return RunFolder(tmp_path / halfway.run_id)


def resumed(run: Run, folder: RunFolder) -> Restored | None:
    """What the run would continue from; None: from its beginning, so that its numbers are those of a whole run."""
    return restored(run, folder, Checkpoints(folder.path / "checkpoint", folder.run_id))


def snapshots(folder: RunFolder) -> list[Path]:
    return sorted(folder.path.glob("checkpoint/snapshot-*.json"))


def test_what_was_not_forged_is_taken(halfway: Run, folder: RunFolder) -> None:
    assert len(snapshots(folder)) == 2
    found = resumed(halfway, folder)
    assert found is not None
    assert found.snapshot.t == 3


def setting(*path: str | int, to: Any) -> Any:
    def change(body: Body) -> None:
        node: Any = body
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = to

    return change


FORGED: dict[str, Any] = {
    "t is text": setting("t", to="2"),
    "t is negative": setting("t", to=-1),
    "t is a fraction": setting("t", to=1.5),
    "t is true": setting("t", to=True),
    "totals are text": setting("totals", 0, to="x"),
    "totals are short": setting("totals", to=[1]),
    "totals are long": setting("totals", to=[1] * 9),
    "totals are null": setting("totals", to=None),
    "no records": setting("records", to={}),
    "records are a list": setting("records", to=[1]),
    "records of another length": lambda body: body["records"].update({"metrics.jsonl": [10**9, "00"]}),
    "records outside": lambda body: body["records"].update({"../../secret": [0, "00"]}),
    "state is null": setting("state", to=None),
    "state is a list": setting("state", to={"$": "list", "items": []}),
    "state of another method": setting("state", "type", to="CorrState"),
    "state without weights": setting("state", "fields", to={}),
    "state with more": lambda body: body["state"]["fields"].update(extra=1),
    "weights are a number": setting("state", "fields", "weights", to=3),
    "weights have other names": lambda body: body["state"]["fields"]["weights"]["names"].__setitem__(0, "x"),
    "weights in another order": lambda body: body["state"]["fields"]["weights"]["names"].reverse(),
    "a kind nobody knows": setting("state", to={"$": "call", "items": []}),
    "no kind": setting("state", to={}),
    "os.system": setting("state", "type", to="os:system"),
    "clients are a number": setting("clients", to=3),
    "client 99": setting("clients", to=[[99, {"$": "record", "type": "Kept", "fields": {}}]]),
    "client x": setting("clients", to=[["x", None]]),
    "loose from outside": setting("loose", to="../../../secret.safetensors"),
    "loose is a device": setting("loose", to="/dev/zero"),
    "loose is a number": setting("loose", to=3),
    "files are a number": setting("files", to=3),
    "another run": setting("run_id", to="fedavg-000000000000"),
    "notes are a number": setting("notes", to=3),
    "deep": setting("state", to=None),  # written below, since json cannot
}


def forge(path: Path, name: str) -> None:
    text: Any = json.loads(path.read_text())["body"]
    if name == "deep":
        text = '{"run_id": ' + "[" * 100_000 + "]" * 100_000 + "}"
    else:
        body = json.loads(text)
        FORGED[name](body)
        text = json.dumps(body)
    path.write_text(json.dumps({"checksum": digest(text.encode()), "body": text}))


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_snapshot_is_passed_over(halfway: Run, folder: RunFolder, name: str) -> None:
    older, newest = snapshots(folder)
    forge(newest, name)
    found = resumed(halfway, folder)
    assert found is not None
    assert found.snapshot.t == 2, "the one before it"
    forge(older, name)
    assert resumed(halfway, folder) is None
    assert not (folder.path / "metrics.jsonl").stat().st_size, "it starts over"


@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "folder", "body a list", "no JSON"])
def test_a_snapshot_that_is_none(halfway: Run, folder: RunFolder, kind: str) -> None:
    path = snapshots(folder)[-1]
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    elif kind == "body a list":
        path.write_text(json.dumps({"checksum": digest(b"[]"), "body": "[]"}))
    else:
        path.write_text("{")
    found = resumed(halfway, folder)
    assert found is not None
    assert found.snapshot.t == 2
