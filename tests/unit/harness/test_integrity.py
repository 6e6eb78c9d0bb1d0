"""Whatever is changed in a run folder is noticed: on resume, by the report, and by `fnll verify`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fnll.cli.verify import main as verify
from fnll.errors import UserError
from fnll.harness.execute import execute
from fnll.harness.integrity import Condition, examine
from fnll.harness.prepare import prepare
from fnll.report import load
from tiny import TINY, PowerCut, PowerCutError, compose

WORLD = [*TINY, "rounds=4", "eval.overlap=false", "checkpoint_seconds=0"]


def prepared(store: Path):
    return prepare(compose([*WORLD, f"runs_dir={store}"]))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Two stores: `whole` with a finished run, `cut` with the same run interrupted."""
    folder = tmp_path_factory.mktemp("made")
    execute(prepared(folder / "whole"))
    with pytest.raises(PowerCutError):
        execute(prepared(folder / "cut"), [PowerCut(3)])
    return folder


def copied(made: Path, tmp_path: Path, name: str) -> Path:
    shutil.copytree(made / name, tmp_path / name)
    return next((tmp_path / name).iterdir())


def flip(path: Path, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def edit(path: Path) -> None:
    """Change one digit, as somebody would who wants a better number; the length stays."""
    lines = path.read_text().splitlines(keepends=True)
    row = next(i for i, line in enumerate(lines) if any(map(str.isdigit, line)))
    i = max(i for i, letter in enumerate(lines[row]) if letter.isdigit())
    lines[row] = lines[row][:i] + str((int(lines[row][i]) + 1) % 10) + lines[row][i + 1 :]
    path.write_text("".join(lines))


def drop_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def remove(path: Path) -> None:
    path.unlink()


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


TEXT_CHANGES = [edit, drop_line]
CHANGES = [flip, *TEXT_CHANGES, truncate, remove, extend]
FILES = ["metrics.jsonl", "diagnostics.jsonl", "config.yaml", "manifest.json"]
DAMAGES = [
    *((name, change) for name in FILES for change in CHANGES),
    *(("summary.json", change) for change in (flip, *TEXT_CHANGES)),
    *(("weights.safetensors", change) for change in CHANGES if change not in TEXT_CHANGES),
]


def test_what_a_run_wrote_is_intact(made):
    for name in ("whole", "cut"):
        assert examine(next((made / name).iterdir()), thorough=True).state is Condition.INTACT
        assert verify([str(made / name)]) == 0


@pytest.mark.parametrize(("name", "change"), DAMAGES, ids=lambda value: getattr(value, "__name__", value))
def test_a_finished_run_that_was_changed_is_damaged(made, tmp_path, name, change, capsys):
    run = copied(made, tmp_path, "whole")
    change(run / name)
    finding = examine(run, thorough=True)
    assert finding.state is Condition.DAMAGED
    assert name in finding.reason
    assert verify([str(tmp_path / "whole")]) == 1
    assert name in capsys.readouterr().out
    if name in FILES:
        with pytest.raises(UserError, match=r"is finished, but its folder was changed since: .* delete .*summary.json"):
            execute(prepared(tmp_path / "whole"))


@pytest.mark.parametrize("change", [extend, truncate], ids=lambda change: change.__name__)
def test_white_space_at_the_end_of_a_summary_is_no_damage(made, tmp_path, change):
    run = copied(made, tmp_path, "whole")
    change(run / "summary.json")
    assert examine(run, thorough=True).state is Condition.INTACT


def test_a_run_without_its_summary_is_not_finished_and_is_finished_again(made, tmp_path):
    run = copied(made, tmp_path, "whole")
    summary = json.loads((run / "summary.json").read_text())
    remove(run / "summary.json")
    assert load(tmp_path / "whole").runs["status"].tolist() != ["finished"]
    assert execute(prepared(tmp_path / "whole"))["test/accuracy"] == summary["test/accuracy"]
    assert examine(run, thorough=True).state is Condition.INTACT


@pytest.mark.parametrize("change", [flip, edit, drop_line, truncate], ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", ["metrics.jsonl", "diagnostics.jsonl"])
def test_a_changed_record_is_noticed_on_resume(made, tmp_path, name, change, caplog):
    run = copied(made, tmp_path, "cut")
    change(run / name)
    if change is not truncate:  # the last bytes may lie behind the checkpoint
        assert examine(run).state is Condition.DAMAGED
    summary = execute(prepared(tmp_path / "cut"))
    if change is not truncate:
        assert f"{name} " in caplog.text
    whole = json.loads((next((made / "whole").iterdir()) / "summary.json").read_text())
    assert summary["test/accuracy"] == whole["test/accuracy"]
    assert examine(run, thorough=True).state is Condition.INTACT


def test_the_report_shows_it_as_damaged_and_the_others_as_they_are(made, tmp_path):
    run = copied(made, tmp_path, "whole")
    twin = run.with_name("fedavg-000000000000")
    shutil.copytree(run, twin)
    edit(run / "metrics.jsonl")
    config = (twin / "config.yaml").read_text().replace("seed: 0", "seed: 1")
    (twin / "config.yaml").write_text(config)  # this one is damaged, too
    store = load(tmp_path / "whole")
    assert store.runs["status"].tolist() == ["damaged", "damaged"]
    assert {"metrics.jsonl is not what the run wrote", "config.yaml is not what the run wrote"} == set(
        store.runs["reason"]
    )


def test_an_older_format_is_unverified_not_damaged(made, tmp_path):
    run = copied(made, tmp_path, "whole")
    summary = json.loads((run / "summary.json").read_text())
    for key in ("files", "checksum"):
        del summary[key]
    (run / "summary.json").write_text(json.dumps(summary))
    assert examine(run).state is Condition.DAMAGED, "a run of this format has a checksum"
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    assert examine(run, thorough=True).state is Condition.UNVERIFIED
    assert verify([str(tmp_path / "whole")]) == 0
    store = load(tmp_path / "whole")
    assert store.runs["status"].tolist() == ["finished"]
    assert "1 finished runs are of an older format without hashes: unverified." in store.notes


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "manifest.json"])
def test_what_is_no_file_is_damage_and_nobody_waits_for_it(made, tmp_path, name, kind):
    path = copied(made, tmp_path, "whole") / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    finding = examine(path.parent)
    assert finding.state is (Condition.INTACT if (name, kind) == ("summary.json", "loop") else Condition.DAMAGED), (
        finding
    )


def test_no_store_is_said():
    with pytest.raises(UserError, match="there is no directory nowhere"):
        verify(["nowhere"])


def test_runs_one_folder_further_down_are_pointed_at(tmp_path):
    run = tmp_path / "demo" / "fedavg-1"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    with pytest.raises(UserError, match=r"no runs in .*; type fnll verify .*demo"):
        verify([str(tmp_path)])
