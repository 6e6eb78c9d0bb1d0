"""Whole runs in this process: the same numbers however they are computed, interrupted or repeated."""

import errno
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fnll.errors import UserError
from fnll.harness.execute import execute
from fnll.harness.prepare import Run, prepare
from fnll.harness.run_folder import FORMAT, BusyError, FormatError, RunFolder, StoreError
from fnll.methods.fedavg import FedAvg
from fnll.system.files import write_json
from fnll.testing import Backwards, same
from fnll.weights import scale
from tiny import TINY, PowerCut, PowerCutError, compose

pytestmark = pytest.mark.usefixtures("fork_server")

WORLD = [*TINY, "rounds=12", "eval.overlap=false"]


def prepared(tmp_path: Path, *overrides: str) -> Run:
    return prepare(compose([*WORLD, f"runs_dir={tmp_path}", *overrides]))


def outcome(folder: Path) -> tuple:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in row.items() if not k.startswith(("time/", "sys/"))} for row in rows]
    return kept, safetensors.torch.load_file(folder / "weights.safetensors")


def run(tmp_path: Path, *overrides: str) -> tuple:
    one = prepared(tmp_path, *overrides)
    execute(one)
    return outcome(tmp_path / one.run_id)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The rows and the weights of the plain, uninterrupted run."""
    return run(tmp_path_factory.mktemp("whole"))


def test_the_run_folder_holds_what_the_contract_says(tmp_path):
    one = prepared(tmp_path, "method=fedprox")
    summary = execute(one)
    folder = tmp_path / one.run_id
    assert folder.name.startswith("fedprox-")
    assert len(folder.name) == len("fedprox-") + 12
    names = {path.name for path in folder.iterdir()}
    assert {
        "config.yaml",
        "manifest.json",
        "metrics.jsonl",
        "summary.json",
        "weights.safetensors",
        "checkpoint",
    } <= names
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 13))
    wanted = {
        "step", "stage", "test/accuracy", "test/balanced_accuracy", "test/loss", "comm/client_updates",
        "comm/contacts", "comm/up_bytes", "comm/down_bytes", "time/step_s",
    }  # fmt: skip
    assert wanted <= rows[0].keys()
    assert rows[-1]["comm/client_updates"] == 36
    model = sum(t.numel() * 4 for t in one.net.fresh(0).values())
    assert rows[-1]["comm/up_bytes"] == rows[-1]["comm/down_bytes"] == 36 * model
    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert summary["finished"] is True
    assert summary["diverged"] is False
    assert summary["exact"] is True
    assert (summary["method"], summary["seed"]) == ("fedprox", 0)
    last10 = sum(row["test/accuracy"] for row in rows[-10:]) / 10
    assert summary["test/accuracy"]["last10"] == pytest.approx(last10)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["fingerprint"] == summary["fingerprint"] == one.scenario.fingerprint
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["format"] == FORMAT


def test_a_finished_run_is_not_run_again(tmp_path):
    one = prepared(tmp_path)
    execute(one)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / one.run_id).rglob("*")}
    execute(prepared(tmp_path))
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / one.run_id).rglob("*")}


@pytest.mark.parametrize(
    "change",
    ["executor=pool executor.workers=1", "executor=pool executor.workers=2", "executor=pool executor.workers=3",
     "eval.overlap=true", "checkpoint_seconds=0", "dataset=synthetic"],
)  # fmt: skip
def test_same_numbers_however_it_is_computed(whole, tmp_path, change):
    other = prepared(tmp_path, *change.split())
    assert prepared(tmp_path).run_id == other.run_id, "what cannot change the numbers is not part of the identity"
    execute(other)
    assert same(whole, outcome(tmp_path / other.run_id))


def test_clients_in_reverse_order_give_the_same_numbers(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "executor", lambda self: Backwards(self.scenario))
    assert same(whole, run(tmp_path))


@pytest.mark.parametrize(
    "change",
    ["seed=1 scenario_seed=0", "scenario_seed=1", "local.lr=0.06", "noise.rho=0.5", "rounds=13", "eval.batch_size=30",
     "eval_every=2", "model.hidden=[9]", "precision=bf16-mixed", "executor.threads=2", "scenario.oracle=true_labels",
     "num_clients=5", "method.mu=0.2"],
)  # fmt: skip
def test_what_can_change_the_numbers_changes_the_identity(tmp_path, change):
    base = "method=fedprox"
    assert prepared(tmp_path, base).run_id != prepared(tmp_path, base, *change.split()).run_id


def test_methods_share_initial_weights_cohorts_and_batches(tmp_path):
    fedavg = run(tmp_path / "a", "method=fedavg", "rounds=3")
    nearly = run(tmp_path / "b", "method=fedprox", "method.mu=1e-12", "rounds=3")
    assert fedavg[1].keys() == nearly[1].keys()
    for name, value in fedavg[1].items():
        assert torch.allclose(value, nearly[1][name], atol=1e-6)


def test_evaluation_is_on_the_common_grid(tmp_path):
    rows, _ = run(tmp_path, "rounds=25", "eval_every=4")
    assert [row["step"] for row in rows] == [4, 8, 12, *range(16, 26)]
    assert [row["comm/client_updates"] for row in rows] == [3 * row["step"] for row in rows]
    # memorisation every five steps: at the first evaluation after each, and at the end
    assert [row["step"] for row in rows if "memory/wrong" in row] == [8, 12, 16, 20, 25]


@dataclass(frozen=True, kw_only=True)
class Explodes(FedAvg):
    """Becomes infinite in its fourth round."""

    def round(self, state, fed):
        new = super().round(state, fed)
        return new if fed.t < 3 else type(new)(scale(new.weights, float("inf")))


def test_a_diverged_run_stops_and_says_so(tmp_path, monkeypatch, caplog):
    one = prepared(tmp_path)
    object.__setattr__(one, "method", Explodes(net=one.net, local=one.method.local, cohort_size=one.cohort_size))
    summary = execute(one)
    assert summary["diverged"] is True
    assert summary["test/accuracy"]["last"] is None
    assert summary["test/accuracy"]["last10"] is None
    assert summary["test/accuracy"]["best"] > 0
    rows, weights = outcome(tmp_path / one.run_id)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(torch.isfinite(value).all() for value in weights.values()), "the last good weights are kept"
    assert "no longer finite" in caplog.text


def interrupt(tmp_path, after: int, *overrides: str) -> Run:
    """Run until `after` evaluations have been written, then stop as a kill would."""

    one = prepared(tmp_path, *overrides)
    with pytest.raises(PowerCutError):
        execute(one, [PowerCut(after)])
    return one


@pytest.mark.parametrize("after", [1, 2, 5, 11])
@pytest.mark.parametrize("seconds", [0, 3600])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(whole, tmp_path, after, seconds):
    one = interrupt(tmp_path / "cut", after, f"checkpoint_seconds={seconds}")
    assert not RunFolder(tmp_path / "cut" / one.run_id).finished
    again = prepared(tmp_path / "cut", f"checkpoint_seconds={seconds}")
    execute(again)
    assert same(whole, outcome(tmp_path / "cut" / again.run_id))


def test_a_damaged_checkpoint_never_leads_to_wrong_numbers(whole, tmp_path, caplog):
    one = interrupt(tmp_path / "cut", 6, "checkpoint_seconds=0")
    newest = max((tmp_path / "cut" / one.run_id / "checkpoint").glob("snapshot-*.json"))
    newest.write_bytes(newest.read_bytes()[:100])
    execute(prepared(tmp_path / "cut", "checkpoint_seconds=0"))
    assert same(whole, outcome(tmp_path / "cut" / one.run_id))
    assert "damaged" in caplog.text


def test_when_every_checkpoint_is_damaged_the_run_starts_over(whole, tmp_path, caplog):
    one = interrupt(tmp_path / "cut", 6, "checkpoint_seconds=0")
    for path in (tmp_path / "cut" / one.run_id / "checkpoint").glob("snapshot-*.json"):
        path.write_text("{}")
    execute(prepared(tmp_path / "cut"))
    assert same(whole, outcome(tmp_path / "cut" / one.run_id))
    assert "starts over" in caplog.text


def test_a_metrics_file_shorter_than_its_checkpoint_says_starts_over(whole, tmp_path, caplog):
    one = interrupt(tmp_path / "cut", 6, "checkpoint_seconds=0")
    (tmp_path / "cut" / one.run_id / "metrics.jsonl").write_text("")
    execute(prepared(tmp_path / "cut"))
    assert same(whole, outcome(tmp_path / "cut" / one.run_id))
    assert "metrics.jsonl has lost records: 0 of" in caplog.text


def test_a_damaged_metrics_file_makes_the_run_start_over(tmp_path, caplog):
    whole = run(tmp_path / "whole")
    one = interrupt(tmp_path / "cut", 6, "checkpoint_seconds=0")
    metrics = tmp_path / "cut" / one.run_id / "metrics.jsonl"
    content = metrics.read_bytes()
    metrics.write_bytes(b"\0" * 40 + content[40:])  # as long as the checkpoint says
    execute(prepared(tmp_path / "cut"))
    assert same(whole, outcome(tmp_path / "cut" / one.run_id))
    assert "metrics.jsonl is not what the run wrote" in caplog.text
    assert "starts over" in caplog.text


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_format(folder: Path, number: int | None) -> None:
    """Make a run folder one of another format; None: of before there was a number."""
    manifest = json.loads((folder / "manifest.json").read_text()) | {"format": number}
    if number is None:
        del manifest["format"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(("number", "version", "told"), [(None, "an older", 1), (FORMAT + 1, "a newer", FORMAT + 1)])
def test_a_run_begun_in_another_format_is_left_as_it_is(tmp_path, number, version, told):
    folder = tmp_path / interrupt(tmp_path, 6, "checkpoint_seconds=0").run_id
    with_format(folder, number)
    before = contents(folder)
    with pytest.raises(FormatError, match=f"begun by {version} fnll .* format {told}, .* cannot be resumed; .* delete"):
        execute(prepared(tmp_path))
    assert contents(folder) == before


def test_another_format_is_no_matter_where_nothing_is_resumed(whole, tmp_path):
    one = prepared(tmp_path / "begun")
    folder = tmp_path / "begun" / one.run_id
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    execute(one)
    assert same(whole, outcome(folder))
    with_format(folder, None)
    summary = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", {key: summary[key] for key in summary if key not in ("files", "checksum")})
    assert execute(prepared(tmp_path / "begun"))["finished"], "a finished run is only read"


def test_a_damaged_manifest_is_no_other_format(whole, tmp_path, caplog):
    folder = tmp_path / interrupt(tmp_path, 6, "checkpoint_seconds=0").run_id
    for damage in ("", "[]", '{"format": "x"}'):
        (folder / "manifest.json").write_text(damage)
        RunFolder(folder).require_resumable()
    execute(prepared(tmp_path))
    assert same(whole, outcome(folder))
    assert "starts over" not in caplog.text


def test_a_damaged_summary_is_said_and_can_be_written_anew(tmp_path):
    one = prepared(tmp_path)
    whole = execute(one)
    summary = tmp_path / one.run_id / "summary.json"
    summary.write_text(summary.read_text()[:50])
    with pytest.raises(UserError, match=r"cannot be read .* delete it and type the command again"):
        execute(prepared(tmp_path))
    summary.unlink()
    again = execute(prepared(tmp_path))
    assert {**again, "files": 0, "checksum": 0} == {**whole, "files": 0, "checksum": 0}, "but the manifest is newer"


def test_a_file_system_without_locks_is_no_busy_run(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fnll.harness.run_folder.fcntl.flock", refuse)
    with pytest.raises(StoreError, match=r"cannot lock .* No locks available.* runs_dir=DIR"):
        execute(prepared(tmp_path))


def test_two_processes_never_compute_one_run(tmp_path):
    one = prepared(tmp_path)
    holder = RunFolder(tmp_path / one.run_id)
    holder.open()
    with pytest.raises(BusyError, match="another process"):
        execute(one)
    holder.close()
    assert execute(one)["finished"]


def test_an_oracle_is_paired_with_its_origin(tmp_path):
    noisy, oracle = prepared(tmp_path, "method=fedavg"), prepared(tmp_path, "method=oracle")
    assert oracle.scenario.origin == noisy.scenario.fingerprint != oracle.scenario.fingerprint
    assert torch.equal(oracle.scenario.labels, noisy.truth.labels)
    assert oracle.run_id.startswith("oracle-")
    dropped = prepared(tmp_path, "method=oracle", "scenario.oracle=drop_noisy")
    assert sum(dropped.scenario.sizes) == int((noisy.scenario.labels == noisy.truth.labels).sum())


def test_a_noisy_validation_set_is_held_out_and_recorded(tmp_path):
    one = prepared(tmp_path, "dataset.validation=0.2", "rounds=2")
    held = set(one.truth.validation.tolist())
    assert len(held) == 24
    assert not held & set(torch.cat(one.scenario.shards).tolist())
    execute(one)
    rows, _ = outcome(tmp_path / one.run_id)
    assert all(0 <= row["val/accuracy"] <= 1 for row in rows)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fraction=0", "fraction must be greater than 0"),
        ("fraction=1.5", r"fraction must be in \[0, 1\]"),
        ("rounds=-1", "rounds must be a whole number from 1 to 1000000000"),
        ("rounds=2.5", "rounds must be a whole number"),
        ("noise.rho=1.5", r"noise.rho must be in \[0, 1\], got 1.5"),
        ("noise.tau=-1", r"noise.tau must be in \[0, 1\]"),
        ("num_clients=0", "num_clients must be a whole number of at least 1"),
        ("num_clients=5000", "num_clients=5000 is more than the 120 training samples"),
        ("seed=-1", "seed must be a whole number"),
        ("eval.batch_size=0", "eval.batch_size must be"),
        ("eval.overlap=perhaps", "eval.overlap must be one of true, false, auto"),
        ("device=tpu9", "device must be auto, cpu, cuda"),
        ("precision=8-bit", "precision must be one of"),
        ("scenario.oracle=all", "scenario.oracle must be one of"),
        ("local.lr=0", "local.lr must be greater than 0"),
        ("executor.threads=0", "executor.threads must be"),
        ("+noise.foo=1", "noise has no setting called 'foo'"),
        ("~noise.rho", "noise needs values for 'rho'"),
        ("model.hidden=[0]", "hidden"),
        ("protocol=mine", "protocol=mine: protocol is found out, not set"),
        ("fraction=true", r"fraction must be in \[0, 1\], got true"),
        ("checkpoint_seconds=abc", "checkpoint_seconds must be at least 0"),
        ("runs_dir=null", "runs_dir must name a folder, got None"),
        ("runs_dir=", "runs_dir must name a folder, got ''"),
        ("device=null", "device must be auto, cpu, cuda"),
        ("device=mps", "device must be auto, cpu, cuda"),
        ("device=cuda:99", "device=cuda:99 was asked for, but torch sees"),
        ("precision=16-mixed device=cpu", "precision=16-mixed needs a GPU; type precision=bf16-mixed"),
        ("scenario.pooled=maybe", "scenario.pooled must be true or false"),
        ("model.hidden=3", "model.hidden must be a list of widths"),
        ("model.pretrained=true", "model.pretrained must be null, torchvision or the path of a file"),
        ("method=fedprox method.form=null", "method.form must be one of"),
        ("method=fedprox method.mu=inf", "method.mu must be finite"),
    ],
)
def test_a_users_mistake_is_one_clear_message(tmp_path, override, message):
    with pytest.raises(UserError, match=message):
        run(tmp_path, *override.split())
    assert not list(tmp_path.rglob("summary.json"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method=fedpox"], "there is no method called 'fedpox'; did you mean fedprox"),
        (["dataset=digit"], "there is no dataset called 'digit'; did you mean digits"),
        (["noise.rhoo=1"], "there is no setting called 'noise.rhoo'; did you mean noise.rho"),
        (["roundz=3"], "there is no setting called 'roundz'; did you mean rounds"),
        (["noise.rho=["], "no viable alternative"),
    ],
)
def test_a_misspelt_name_suggests_the_nearest(overrides, message):
    with pytest.raises(UserError, match=message):
        compose(overrides)


def test_an_unwritable_store_is_said_clearly(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another folder with runs_dir=DIR"):
        execute(prepared(tmp_path / "file" / "runs"))
