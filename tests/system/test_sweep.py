"""Sweeps with real processes: the same store, whatever happens on the way."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from stores import contents

from fnll import cli
from fnll.errors import UserError
from fnll.harness.config import compose
from fnll.harness.execute import prepare_or_record
from fnll.harness.run_folder import RunFolder, StoreError
from fnll.report import cells, load, scores
from fnll.sweep.bundles import one_by_one
from fnll.sweep.conductor import Conductor
from fnll.sweep.events import Ending, Outcome
from fnll.sweep.grid import PlannedRun, expand
from fnll.sweep.machine import LocalLauncher
from tiny import TINY

pytestmark = pytest.mark.usefixtures("fork_server")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # multiprocessing tells workers where their parent looks for modules

TWO = [*TINY, "num_clients=4", "rounds=2", "diagnostics_every=0", "device=cpu"]
SIX = ["method=fedavg,fedprox", "seed=range(3)"]


def sweep(store: Path, *words: str, code: int = 0) -> None:
    """`fnll sweep` in this process, so that its fork server can be used by the next test, too."""
    assert cli.main(["sweep", *TWO, f"runs_dir={store}", *words]) == code


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of six finished runs."""
    store = tmp_path_factory.mktemp("six") / "runs"
    sweep(store, *SIX)
    return store


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A config folder with the methods of sweep_methods.py."""
    (tmp_path / "configs" / "method").mkdir(parents=True)
    for name, more in {"choosy": "", "mortal": f"graveyard: {tmp_path / 'graves'}\nlives: 1\n"}.items():
        text = f"_target_: sweep_methods.{name.capitalize()}\n_partial_: true\n{more}"
        (tmp_path / "configs" / "method" / f"{name}.yaml").write_text(text)
    return tmp_path / "configs"


def test_a_sweep_gives_the_runs_of_fnll_run_and_a_second_one_does_nothing(
    six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(contents(six)) == 6
    assert cli.main(["run", *TWO, "method=fedprox", "seed=1", f"runs_dir={tmp_path}"]) == 0
    (alone,) = contents(tmp_path)
    assert contents(tmp_path)[alone] == contents(six)[alone]
    before = {path: path.stat().st_mtime_ns for path in six.rglob("*")}
    capsys.readouterr()
    sweep(six, *SIX)
    assert "6 finished before" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in six.rglob("*")} == before


def test_runs_that_are_driven_together_have_the_same_bits_when_they_are_typed_again(tmp_path: Path) -> None:
    """Who is in company with whom is settled beforehand, so it does not matter which process was free when."""
    words = ["method=fedavg,fedprox,fednoro", "seed=range(3)", "rounds=6", "local.epochs=4", "executor=vectorised"]
    for store in ("a", "b"):
        sweep(tmp_path / store, *words, "--jobs", "2")
    assert len(contents(tmp_path / "a")) == 9
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_dry_run_lists_the_runs_with_their_state_and_does_nothing(
    six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs"
    shutil.copytree(six, store)
    done, begun, *_ = sorted(contents(store))
    (store / begun / "summary.json").unlink()
    capsys.readouterr()
    sweep(store, "method=fedavg,fedprox", "seed=range(4)", "--dry-run")
    *lines, hours = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(hours).startswith("3 runs to do, about ")
    state = {run_id: word for word, run_id, *_ in lines[2:]}  # below how many there are and what data they need
    assert (state[done], state[begun]) == ("finished", "unfinished")
    assert sorted(state.values()) == ["finished"] * 5 + ["new"] * 2 + ["unfinished"]
    assert len([path for path in store.iterdir() if path.name[0] != "."]) == 6


def test_shards_together_are_the_whole(six: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    sweep(store, *SIX, "--shard", "1/2", "--jobs", "1")
    assert len(contents(store)) == 3
    sweep(store, *SIX, "--shard", "2/2")
    assert contents(store) == contents(six)


def test_a_failing_run_is_recorded_and_stops_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(tmp_path, "method=fedprox", "method.mu=0.1,-1,1", "seed=5", code=1)
    out = capsys.readouterr().out
    assert "3 runs" in out
    assert "2 finished, 1 failed" in out
    (failed,) = tmp_path.glob("*/failed.json")
    record = json.loads(failed.read_text())
    assert "method.mu" in record["error"]
    assert record["command"] in out
    assert "method.mu=-1" in shlex.split(record["command"])
    assert len(list(tmp_path.glob("*/summary.json"))) == 2


def test_a_run_without_a_scenario_is_recorded_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(tmp_path, "method=fedavg,fedprox", "num_clients=4,200", code=1)  # of 120 samples
    out = capsys.readouterr().out
    assert "2 finished, 2 failed" in out
    assert [len(list(tmp_path.glob(f"*/{name}.json"))) for name in ("summary", "failed", "manifest")] == [2, 2, 4]
    record = json.loads(next(tmp_path.glob("fedprox-*/failed.json")).read_text())
    assert "num_clients" in record["error"]
    assert record["command"] in out
    table = cells(scores(load(tmp_path)))
    missing = table[table["mean"].isna()]
    assert len(missing) == 2
    assert missing["reason"].str.contains("num_clients").all()
    sweep(tmp_path, "method=fedavg,fedprox", "num_clients=4,200", code=1)
    assert len(list(tmp_path.glob("*/config.yaml"))) == 4, "the same folders"


def test_a_record_without_a_scenario_makes_no_column_of_its_own(tmp_path: Path) -> None:
    sweep(tmp_path, "executor=vectorised", "num_clients=4,200", code=1)
    assert load(tmp_path).cell_labels == ["clients=4", "clients=200"]


def test_a_scenario_that_can_be_made_again_removes_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compose([*TWO, f"runs_dir={tmp_path}"])

    def no_disk(request: object) -> None:
        raise UserError("the data are not there")

    with monkeypatch.context() as patched:
        patched.setattr("fnll.harness.execute.prepare", no_disk)
        with pytest.raises(UserError, match="not there"):
            prepare_or_record(request)
    assert len(list(tmp_path.glob("fedavg-*/failed.json"))) == 1
    prepare_or_record(request)
    assert not list(tmp_path.glob("fedavg-*"))


def test_a_mistake_in_the_first_run_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(tmp_path / "runs", "method=fedavg", "noise.rh=0.4", code=2)
    assert "noise.rho" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_method_may_decline(tmp_path: Path, plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(tmp_path / "runs", "method=fedavg,choosy", "--config-dir", str(plugin), "--allow", "sweep_methods")
    out = capsys.readouterr().out
    assert "1 finished, 1 declined" in out
    (declined,) = tmp_path.glob("runs/choosy-*/declined.json")
    assert "4 clients are not enough" in json.loads(declined.read_text())["reason"]
    assert (declined.parent / "config.yaml").exists()


def test_a_killed_worker_is_replaced_and_its_run_repeated(
    tmp_path: Path, plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(tmp_path / "runs", "method=mortal,fedavg", "--config-dir", str(plugin), "--allow", "sweep_methods")
    assert "2 finished" in capsys.readouterr().out
    assert len(list((tmp_path / "graves").iterdir())) == 1


def test_a_run_that_kills_its_worker_twice_has_failed_until_it_succeeds(
    tmp_path: Path, plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("method=mortal,fedavg", "--config-dir", str(plugin), "--allow", "sweep_methods")
    config = plugin / "method" / "mortal.yaml"
    config.write_text(config.read_text().replace("lives: 1", "lives: 2"))
    sweep(tmp_path / "runs", *words, code=1)
    out = capsys.readouterr().out
    assert "1 finished, 1 failed" in out
    (failed,) = tmp_path.glob("runs/mortal-*/failed.json")
    record = json.loads(failed.read_text())
    assert "SIGKILL" in record["error"]
    assert record["command"] in out
    assert f"--config-dir={plugin}" in shlex.split(record["command"])
    sweep(tmp_path / "runs", *words)
    assert not failed.exists()
    assert (failed.parent / "summary.json").exists()


class Silent:
    def show(self, planned: PlannedRun, event: object) -> None: ...

    def postpone(self, planned: PlannedRun) -> None: ...

    def settle(self, planned: PlannedRun, outcome: Outcome) -> None: ...

    def tick(self) -> None: ...


def test_two_sweeps_at_once_share_the_work(six: Path, tmp_path: Path) -> None:
    runs = expand([*TWO, *SIX, f"runs_dir={tmp_path}"]).runs
    outcomes: list[dict[PlannedRun, Outcome]] = []

    def conduct() -> None:
        launcher = LocalLauncher(1, spare_core=False)
        launcher.patience = 0.2
        try:
            outcomes.append(Conductor(launcher, Silent()).run(one_by_one(runs)))
        finally:
            launcher.close()

    threads = [threading.Thread(target=conduct) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = outcomes
    assert all({first[planned].kind, second[planned].kind} == {Ending.FINISHED, Ending.KNOWN} for planned in runs)
    assert contents(tmp_path) == contents(six)


def test_a_run_that_another_process_holds_is_taken_over_when_that_lets_go(six: Path, tmp_path: Path) -> None:
    run_id, content = next(iter(contents(six).items()))
    method, seed = content["summary"]["method"], content["summary"]["seed"]
    (planned,) = expand([*TWO, f"method={method}", f"seed={seed}", f"runs_dir={tmp_path}"]).runs
    holder = RunFolder(tmp_path / run_id)
    holder.open()
    launcher = LocalLauncher(1, spare_core=False)
    launcher.patience = 0.1

    class LetGo(Silent):
        def postpone(self, planned: PlannedRun) -> None:
            holder.close()

    try:
        outcomes = Conductor(launcher, LetGo()).run([(planned,)])
    finally:
        launcher.close()
    assert outcomes[planned].kind is Ending.FINISHED
    assert contents(tmp_path)[run_id] == contents(six)[run_id]


def test_a_store_that_cannot_be_made_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    sweep(tmp_path / "file" / "runs", *SIX, code=2)
    captured = capsys.readouterr()
    assert "cannot write to" in captured.err
    assert "runs_dir=DIR" in captured.err
    assert captured.err.count("\n") == 1


def test_a_disk_that_is_full_is_an_error_of_its_own_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fnll.harness.config import compose
    from fnll.harness.execute import execute
    from fnll.harness.prepare import prepare

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    experiment = prepare(compose([*TWO, f"runs_dir={tmp_path}"]))
    monkeypatch.setattr(RunFolder, "append", full)
    with pytest.raises(StoreError, match="No space left on device"):
        execute(experiment)
    assert issubclass(StoreError, UserError)
    assert "No space left" in json.loads((tmp_path / experiment.run_id / "failed.json").read_text())["error"]


LONGER = [*TWO, "rounds=30", "checkpoint_seconds=0.05"]


def members(session: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def interrupted(command: list[str], store: Path, blow: signal.Signals, rng: random.Random) -> int | None:
    """Start a sweep, wait until it works, strike, and see that nothing of it is left."""
    before = sum(path.stat().st_size for path in store.glob("*/metrics.jsonl"))
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and sum(p.stat().st_size for p in store.glob("*/metrics.jsonl")) == before:
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 0.5))
    if blow is signal.SIGINT and process.poll() is None:
        os.killpg(process.pid, blow)  # as a terminal does
    else:
        process.send_signal(blow)  # nothing, if it has ended
    _, errors = process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while members(process.pid):
        assert time.monotonic() < deadline, "processes outlive their sweep"
        time.sleep(0.05)
    if blow is signal.SIGINT and process.returncode:
        assert b"run the same command again" in errors
        assert b"Traceback" not in errors
    return process.returncode


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for orphans in /proc")
@pytest.mark.usefixtures("ctrl_c_works")
def test_a_sweep_killed_again_and_again_ends_with_the_same_store(tmp_path: Path) -> None:
    words = [*LONGER, *SIX]
    assert cli.main(["sweep", *words, f"runs_dir={tmp_path / 'whole'}"]) == 0
    store, rng = tmp_path / "broken", random.Random(0)
    store.mkdir()
    command = [sys.executable, "-m", "fnll", "sweep", *words, f"runs_dir={store}"]
    codes = [
        interrupted(command, store, blow, rng)
        for blow in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
    ]
    assert codes[0] in (0, -signal.SIGKILL)  # 0: on a busy machine the blow may come too late
    assert codes[1] in (0, 130)
    assert any(codes), "the test must have interrupted something"
    assert cli.main(["sweep", *words, f"runs_dir={store}"]) == 0
    assert contents(store) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_report_in_the_end(six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(six, *SIX, "--report", str(tmp_path / "report"))
    out = capsys.readouterr().out
    assert "fedprox" in out
    assert str(tmp_path / "report" / "report.html") in out
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.slow
def test_submitit_gives_the_same_store(six: Path, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    store = tmp_path / "runs"
    settings = ["sweep.submitit.cluster=local", "sweep.submitit.runs_per_job=3", "sweep.submitit.timeout_min=10"]
    sweep(store, *SIX, "sweep.launcher=submitit", *settings)
    assert contents(store) == contents(six)


@pytest.mark.slow
def test_ray_gives_the_same_store(six: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    store = tmp_path / "runs"
    sweep(store, *SIX, "sweep.launcher=ray")
    assert contents(store) == contents(six)


@pytest.mark.parametrize(("launcher", "package"), [("submitit", "slurm"), ("ray", "ray")])
def test_a_missing_package_is_named(
    launcher: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, launcher, None)
    sweep(tmp_path, f"sweep.launcher={launcher}", code=2)
    assert f"pip install 'fnll[{package}]'" in capsys.readouterr().err


def test_an_unknown_launcher_and_unknown_settings_of_submitit_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(tmp_path, "sweep.launcher=rya", code=2)
    assert "did you mean ray?" in capsys.readouterr().err
    words = ["sweep.launcher=submitit", "sweep.submitit.cluster=local", "+sweep.submitit.slurm_nonsense=1"]
    sweep(tmp_path, *words, code=2)
    assert "sweep.submitit: Unknown argument 'nonsense'" in capsys.readouterr().err
