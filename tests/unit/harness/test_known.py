"""A finished run is found by what was typed; whatever the index says, never another one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fnll.harness import identity, known
from fnll.harness.composer import Composer
from fnll.harness.config import compose
from fnll.harness.execute import execute
from fnll.harness.prepare import prepare
from fnll.system import marks
from tiny import TINY

WORLD = [*TINY, "rounds=1", "diagnostics_every=0"]


def asked(store: Path, *words: str):
    return compose([*WORLD, f"runs_dir={store}", *words])


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """A store of two finished runs."""
    store = tmp_path_factory.mktemp("known") / "runs"
    for seed in (0, 1):
        execute(prepare(asked(store, f"seed={seed}")))
    return store


@pytest.fixture
def store(two, tmp_path) -> Path:
    return shutil.copytree(two, tmp_path / "runs")


def test_a_finished_run_is_found_by_its_words(store):
    for seed in (0, 1):
        summary = known.finished(asked(store, f"seed={seed}"))
        assert summary["run_id"] == prepare(asked(store, f"seed={seed}")).run_id
    assert known.finished(asked(store, "seed=2")) is None


@pytest.mark.parametrize(
    "words", [["rounds=2"], ["method=fedprox"], ["noise.rho=0.1"], ["executor.threads=2"], ["device=cpu"]]
)
def test_other_words_are_another_key(store, words):
    assert known.key_of(asked(store, *words)) != known.key_of(asked(store))
    assert known.finished(asked(store, *words)) is None


@pytest.mark.parametrize("words", [["logger=csv"], ["checkpoint_seconds=1"], ["eval.overlap=false"]])
def test_words_that_change_no_number_find_the_run(store, words):
    assert known.finished(asked(store, *words)) == known.finished(asked(store))


def entry(store: Path, *words: str) -> Path:
    return store / known.INDEX / known.key_of(asked(store, *words))


@pytest.mark.parametrize("damage", ["", "\0", "../..", "fedavg-000000000000", "another"])
def test_a_wrong_index_never_shows_a_wrong_run(store, damage):
    other = known.finished(asked(store, "seed=1"))["run_id"]
    entry(store).write_text(other if damage == "another" else damage)
    assert known.finished(asked(store)) is None
    right = execute(prepare(asked(store)))  # finds it by its id, and notes it again
    assert known.finished(asked(store)) == right


def test_only_the_folders_own_word_counts(store):
    mine, other = (known.finished(asked(store, f"seed={seed}"))["run_id"] for seed in (0, 1))
    entry(store).write_text(other)
    shutil.copy(store / mine / known.ASKED, store / other / known.ASKED)  # as if somebody had copied it there
    assert known.finished(asked(store)) is None


@pytest.mark.parametrize("name", ["summary.json", "manifest.json", known.ASKED])
def test_a_damaged_folder_is_not_shown(store, name):
    run = store / known.finished(asked(store))["run_id"]
    for text in ("", "[]", json.dumps({"run_id": run.name})):
        (run / name).write_text(text)
        assert known.finished(asked(store)) is None
    (run / name).unlink()
    assert known.finished(asked(store)) is None


def test_a_lost_index_is_made_again(store):
    shutil.rmtree(store / known.INDEX)
    assert known.finished(asked(store, "seed=1"))["seed"] == 1
    assert len(list((store / known.INDEX).iterdir())) == 2


def test_what_a_killed_note_left_behind_is_removed_by_the_next(store):
    run = prepare(asked(store))
    folder = store / run.run_id
    (folder / known.ASKED).rename(folder / ".asked.json.ab12_xyz.partial")
    (folder / ".my notes").touch()
    execute(run)
    assert (folder / known.ASKED).exists()
    assert [path.name for path in folder.glob(".*")] == [".my notes"]


def test_edited_code_is_noticed(store, monkeypatch):
    monkeypatch.setattr(known, "source_digest", lambda top: "edited")
    assert known.finished(asked(store)) is None


def test_a_store_that_cannot_be_written_costs_time_only(store, monkeypatch):
    def fail(*args, **named):
        raise OSError("read-only")

    monkeypatch.setattr(known, "write_json", fail)
    known.note(store / known.finished(asked(store))["run_id"], "0" * 32)
    assert not (store / known.INDEX / ("0" * 32)).exists()


@pytest.fixture
def settled(monkeypatch):
    monkeypatch.setattr(marks, "SETTLED", 0)
    monkeypatch.setattr(marks, "TICK", 2**62)  # whatever this file system's clock shows
    monkeypatch.setattr(known, "FRESH", 0.0)


def test_files_of_the_data_are_part_of_the_key(tmp_path, settled):
    root = tmp_path / "data"
    (root / "inside").mkdir(parents=True)
    (root / "inside/a").write_text("1")
    scene = {"dataset": {"root": str(root)}}
    before = known.stamps(scene)
    assert before == known.stamps(scene)
    os.utime(root / "inside/a", ns=(0, 0))  # the change time tells
    assert known.stamps(scene) != before
    (root / ".lock").write_text("")
    now = known.stamps(scene)
    (root / "b").write_text("2")
    assert known.stamps(scene) != now


def test_files_that_were_changed_just_now_have_no_key(tmp_path, monkeypatch):
    monkeypatch.setattr(known, "FRESH", 0.0)
    (tmp_path / "a").write_text("1")
    assert known.stamps({"dataset": {"root": str(tmp_path)}}) is None
    assert known.stamps({"dataset": {"root": str(tmp_path / "nowhere")}}) == []


def test_a_plugins_data_have_no_key(tmp_path):
    request = asked(tmp_path)
    request.cfg.noise = {"_target_": "somewhere.else.Noise"}
    assert known.key_of(request) is None


def test_nothing_imports_torch_to_find_a_run(store):
    probe = (
        "import sys; from fnll.cli import main; "
        f"code = main(['run', *{WORLD!r}, 'runs_dir={store}']); "
        "print([name for name in ('torch', 'lightning', 'pandas', 'sklearn', 'numpy') if name in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "is finished already" in done.stdout
    assert done.stdout.splitlines()[-1] == "[] 0"


@pytest.mark.parametrize(
    "words",
    [
        ["method=fedcorr", "seed=3", "noise.rho=0.4"],
        ["experiment=demo", "method=fedrn", "seed=1", "noise.tau=0"],
        ["method=fedcorr", "method@method.usual=fedprox", "method.usual.mu=0.1"],
        ["+method.extra=1", "seed=2"],
        ["model=mlp", "model.hidden=[4,5]", "scenario_seed=7"],
        ["preset=paper", "method=fedprox", "dataset=cifar10", "seed=1"],
        ["logger=[csv,tensorboard]", "runs_dir=elsewhere"],
        ["local={lr:0.5}", "seed=1"],
    ],
)
def test_the_composer_gives_what_hydra_gives(words):
    composer = Composer()
    composer(["method=fedavg", "seed=9"])
    for _ in range(2):  # the second time from what it remembers
        ours, hydras = composer(words), compose(words)
        assert (ours.cfg, ours.choices, ours.overrides) == (hydras.cfg, hydras.choices, hydras.overrides)
        assert identity.settings(ours) == identity.settings(hydras)


@pytest.mark.parametrize("words", [["noise.rhoo=1"], ["seed=1,2"], ["method.mu=1"], ["method=fedpox"], ["rounds="]])
def test_the_composers_mistakes_are_hydras(words):
    messages = []
    for one in (compose, Composer()):
        try:
            messages.append(one(words).cfg)
        except Exception as error:
            messages.append(str(error))
    assert messages[0] == messages[1]
