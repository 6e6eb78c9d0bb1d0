"""The mirrors, read back: same keys and numbers as metrics.jsonl, and a W&B run that a resume continues."""

import contextlib
import csv
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb
from google.protobuf.message import DecodeError
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from fnll.errors import UserError
from fnll.harness.execute import execute
from fnll.harness.loggers import Mirror, watchers
from fnll.harness.prepare import prepare
from tiny import TINY, PowerCut, PowerCutError, compose

WORLD = [*TINY, "rounds=4", "eval.overlap=false", "seed=3"]


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))


def run(tmp_path: Path, *overrides: str, extra=()) -> Path:
    request = compose([*WORLD, f"runs_dir={tmp_path}", *overrides])
    run = prepare(request)
    execute(run, [*watchers(request), *extra])
    return tmp_path / run.run_id


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_csv_and_tensorboard_mirror_the_rows(tmp_path):
    folder = run(tmp_path, "logger=[csv,tensorboard]")
    rows = metrics(folder)
    with (folder / "csv/metrics.csv").open() as file:
        mirrored = list(csv.DictReader(file))
    assert [float(row["test/accuracy"]) for row in mirrored] == [row["test/accuracy"] for row in rows]
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    points = events.Scalars("test/accuracy")
    assert [point.step for point in points] == [1, 2, 3, 4]
    assert [point.value for point in points] == pytest.approx([row["test/accuracy"] for row in rows])


def log_records(content: bytes) -> Iterator[bytes]:
    """W&B's transaction log: seven bytes of header, then LevelDB's log format in blocks of 32 KiB."""
    block, at, parts = 32768, 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:  # what is left of a block is padding
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def records(folder: Path) -> list:
    """Every record of every offline W&B folder of a run, in order."""
    return [record for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")) for record in whole(path)]


def whole(path: Path) -> list:
    """The records of a file up to the one that ends it, which W&B's own process may still be writing."""
    found: list = []
    deadline = time.monotonic() + 60
    while not (found and found[-1].HasField("exit")) and time.monotonic() < deadline:
        with contextlib.suppress(DecodeError):  # it was read in the middle of a write
            found = [wandb_internal_pb2.Record.FromString(data) for data in log_records(path.read_bytes())]
        time.sleep(0.05)
    assert found, f"W&B wrote nothing that can be read into {path.name}"
    return found


def artifacts(folder: Path) -> list:
    """Scenario files that W&B was given; tables are artifacts to it, too."""
    found = [record.artifact for record in records(folder) if record.HasField("artifact")]
    return [artifact for artifact in found if artifact.type == "scenario"]


def history(found: list) -> list[dict]:
    def name(item):
        return item.key or "/".join(item.nested_key)

    return [{name(i): json.loads(i.value_json) for i in r.history.item} for r in found if r.HasField("history")]


def test_wandb_offline_has_the_same_rows_group_and_id_and_a_resume_continues(tmp_path, caplog):
    with pytest.raises(PowerCutError):
        run(tmp_path, "logger=wandb", "checkpoint_seconds=0", extra=[PowerCut(2)])
    assert wandb.run is None, "an aborted run is closed, or the next one would write into it"
    folder = run(tmp_path, "logger=wandb", "checkpoint_seconds=0")
    found = records(folder)
    starts = [record.run for record in found if record.HasField("run")]
    assert len({start.run_id for start in starts}) == 1
    assert starts[0].run_id == folder.name
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {start.run_group for start in starts} == {f"run/{manifest['origin']}"}
    assert {start.job_type for start in starts} == {"fedavg"}
    assert {start.display_name for start in starts} == {"fedavg-s3"}
    assert f"wandb sync {tmp_path}/*/wandb/offline-run-*" in caplog.text
    assert len(list(tmp_path.glob("*/wandb/offline-run-*"))) == 2, "and it finds both parts of the run"
    rows = {row["step"]: row["test/accuracy"] for row in history(found) if "test/accuracy" in row}
    assert rows == {row["step"]: row["test/accuracy"] for row in metrics(folder)}


def test_wandb_keeps_the_scenario_file_once(tmp_path):
    with pytest.raises(PowerCutError):
        run(tmp_path, "logger=wandb", "checkpoint_seconds=0", extra=[PowerCut(2)])
    folder = run(tmp_path, "logger=wandb", "checkpoint_seconds=0")
    (logged,) = artifacts(folder)
    assert logged.name == f"scenario-{json.loads((folder / 'manifest.json').read_text())['fingerprint']}"
    (entry,) = logged.manifest.contents
    assert Path(entry.local_path).is_relative_to(folder), "kept with the run, not in a folder of the user"
    again = prepare(compose([*WORLD, f"runs_dir={tmp_path}", "scenario=file", f"scenario.path={entry.local_path}"]))
    assert again.run_id == folder.name, "the very scenario of the run"


def test_wandb_leaves_the_scenario_of_an_oracle_to_the_others_of_its_group(tmp_path):
    folder = run(tmp_path, "logger=wandb", "method=oracle")
    assert artifacts(folder) == []
    assert not list(folder.glob("wandb/scenario-*"))


def test_wandb_summary_has_best_last_and_last10(tmp_path):
    folder = run(tmp_path, "logger=wandb")
    summary = json.loads((folder / "summary.json").read_text())
    found = {}
    for record in records(folder):
        if record.HasField("summary"):
            found |= {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.summary.update}
    for rule in ("best", "last", "last10"):
        assert found[f"test/accuracy/{rule}"] == summary["test/accuracy"][rule]


def test_no_key_reaches_a_run_folder(tmp_path, monkeypatch):
    secret = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setenv("WANDB_API_KEY", secret)
    folder = run(tmp_path, "logger=wandb", "logger.wandb.mode=offline")
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {"config.yaml", "manifest.json", "summary.json"} <= files.keys()
    assert not [name for name, content in files.items() if secret.encode() in content]


def test_a_wrong_mode_is_said(tmp_path):
    with pytest.raises(UserError, match=r"logger\.wandb\.mode must be one of"):
        run(tmp_path, "logger=wandb", "logger.wandb.mode=sometimes")


@pytest.fixture
def thesis(tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("years of work")
    return folder


@pytest.mark.parametrize(("logger", "place"), [("csv", "ABSOLUTE"), ("csv", ".."), ("tensorboard", "ABSOLUTE")])
def test_a_mirror_stays_in_its_runs_folder(tmp_path, thesis, fnll, logger, place):
    finished = tmp_path / "runs" / "fedavg-0123456789ab"
    finished.mkdir(parents=True)
    (finished / "summary.json").write_text("{}")
    key, value = f"logger.{logger}.folder", str(thesis) if place == "ABSOLUTE" else place
    done = fnll("run", *WORLD, f"logger={logger}", f"{key}={value}")
    assert done.returncode == 2
    assert f"{key} must be one plain name" in done.stderr
    assert f"got {value!r}; type for example {key}=curves" in done.stderr
    assert "Traceback" not in done.stderr
    assert (thesis / "chapter.tex").read_text() == "years of work"
    assert [path.name for path in finished.parent.iterdir()] == [finished.name], "refused before there is a run folder"
    assert (finished / "summary.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("logger=csv logger.csv.folder=../../thesis", r"logger\.csv\.folder must be one plain name"),
        ("logger=csv logger.csv.folder=null", r"logger\.csv\.folder must be one plain name .* got None"),
        ("logger=tensorboard logger.tensorboard.folder=3", r"folder must be one plain name .* got 3"),
        ("logger=csv logger.csv.folder=checkpoint", r"logger\.csv\.folder=checkpoint is taken already"),
        ("logger=csv logger.csv.folder=Wandb", r"logger\.csv\.folder=Wandb is taken already"),
        ("logger=tensorboard +logger.tensorboard.logger.sub_dir=../../x", r"logger\.sub_dir must be one plain name"),
        ("logger=csv +logger.csv.logger.save_dir=/tmp/x", r"logger\.csv\.logger\.save_dir=/tmp/x would be lost"),
        ("logger=csv +logger.csv.logger.version=3", r"logger\.csv\.logger\.version=3 would be lost"),
        ("logger=[csv,tensorboard] logger.csv.folder=tensorboard", r"folder=tensorboard is taken already"),
    ],
)
def test_settings_of_a_mirror_lead_nowhere_else(tmp_path, words, message):
    with pytest.raises(UserError, match=message):
        watchers(compose([*WORLD, f"runs_dir={tmp_path}", *words.split()]))


def test_a_plain_name_is_a_folder_in_the_run(tmp_path):
    folder = run(tmp_path, "logger=csv", "logger.csv.folder=My-curves_2")
    assert len((folder / "My-curves_2/metrics.csv").read_text().splitlines()) == 5


def test_a_mirror_made_by_hand_stays_inside_too(tmp_path, thesis):
    with pytest.raises(UserError, match="folder must be one plain name"):
        run(tmp_path / "runs", extra=[Mirror(CSVLogger, "../../thesis")])
    assert (thesis / "chapter.tex").exists()
