"""The command line as a stranger meets it."""

import json
import random
import signal

import pytest
import safetensors.torch
from commands import Fate

from conftest import TINY, only_run, timeless
from fnll.testing import same


def test_one_run_from_an_empty_directory(python_m_fnll, fnll, tmp_path):
    done = python_m_fnll("run", *TINY)
    assert done.returncode == 0, done.stderr
    assert "last10" in done.stdout
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}, "nothing else is left behind"
    again = fnll("run", *TINY)
    assert "finished already" in again.stdout


def test_a_mistake_in_a_new_interpreter(python_m_fnll):
    done = python_m_fnll("rnu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fnll: there is no command 'rnu'; did you mean run?\n"


def test_help_teaches(fnll):
    for words in ([], ["--help"], ["run", "--help"], ["check", "--help"], ["methods", "--help"]):
        done = fnll(*words)
        assert done.returncode == 0
        assert "fnll" in done.stdout
    assert "method: " in fnll("run", "--help").stdout


def test_hydras_own_flags_work(fnll):
    assert "num_clients: 20" in fnll("run", "--cfg", "job").stdout
    assert "Config search path" in fnll("run", "--info", "config").stdout  # Hydra says it by a logger that is ours


def test_a_config_dir_of_ones_own(fnll, tmp_path):
    (tmp_path / "mine/method").mkdir(parents=True)
    (tmp_path / "mine/method/mine.yaml").write_text(
        "_target_: fnll.methods.fedprox.FedProx\n_partial_: true\nmu: 0.5\nform: half_squared\n"
    )
    done = fnll("run", "--config-dir", "mine", "method=mine", *TINY)
    assert done.returncode == 0, done.stderr
    assert only_run(tmp_path / "runs").name.startswith("mine-")
    assert fnll("check", "mine/method/mine.yaml", "--only", "finite").returncode == 0
    assert "mine " in fnll("methods", "--config-dir", "mine").stdout


def test_methods_lists_papers(fnll):
    table = fnll("methods").stdout
    assert "fedavg" in table
    assert "averages" in table
    assert {row["name"] for row in json.loads(fnll("methods", "--json").stdout)} >= {"fedavg", "fedprox", "oracle"}


def test_check_in_words_and_for_machines(fnll):
    done = fnll("check", "fedavg", "--only", "finite,learns")
    assert done.returncode == 0
    assert "2 of 2 checks hold" in done.stdout
    lines = fnll("check", "fedavg", "--only", "finite", "--json").stdout.splitlines()
    assert json.loads(lines[0])["outcome"] == "passed"
    assert json.loads(lines[0])["method"] == "fedavg"


def test_check_blames_a_method_that_cannot_be_made_once(fnll, tmp_path):
    (tmp_path / "mine.yaml").write_text("_target_: fnll.methods.fedprox.FedProx\n_partial_: true\nnu: 0.5\n")
    done = fnll("check", "mine.yaml")
    assert done.returncode == 1
    assert done.stdout.count("method has no setting called 'nu'") == 1
    assert "further checks were not tried" in done.stdout
    rows = [json.loads(line) for line in fnll("check", "mine.yaml", "--json").stdout.splitlines()]
    assert [row["outcome"] for row in rows] == ["failed"] + ["untried"] * (len(rows) - 1)


def test_a_class_that_python_does_not_find_is_named_with_the_remedy(fnll, tmp_path):
    (tmp_path / "mine/method").mkdir(parents=True)
    (tmp_path / "mine/method/mine.yaml").write_text("_target_: my_methods.Mine\n_partial_: true\n")
    done = fnll("run", "--allow", "my_methods", "--config-dir", "mine", "method=mine", *TINY)
    assert done.returncode == 2
    assert "no module 'my_methods'" in done.stderr
    assert "PYTHONPATH=" in done.stderr


def test_two_config_dirs_with_one_name_are_refused_in_every_group(fnll, tmp_path):
    (tmp_path / "mine/noise").mkdir(parents=True)
    (tmp_path / "mine/noise/none.yaml").write_text("_target_: builtins.dict\n")
    done = fnll("run", "--config-dir", "mine", *TINY)
    assert done.returncode == 2
    assert "noise=none is defined twice" in done.stderr


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("_target_: nosuch.Mine\n_partial_: true\n", "finds no module 'nosuch'"),
        ("_target_: fnll.methods.fedavg.FedAvgg\n_partial_: true\n", "did you mean FedAvg?"),
        ("_target_: fnll.methods.fedavg.FedAvg\n", "lacks `_partial_: true`"),
        ("_target_: fnll.methods.fedprox.FedProx\n_partial_: true\nmu: 0.1\n", "needs values for 'form'"),
        ("_target_: collections.OrderedDict\n_partial_: true\n", "it has no init, round, model"),
        ("mu: 0.1\n", "names no `_target_`"),
        ("mu: [1,\n", "is not YAML"),
    ],
)
def test_a_broken_yaml_is_one_message(text, hint, fnll, tmp_path):
    (tmp_path / "mine/method").mkdir(parents=True)
    for path in ("mine/method/mine.yaml", "mine.yaml"):
        (tmp_path / path).write_text(text)
    run = fnll("run", "--allow=nosuch,collections", "--config-dir", "mine", "method=mine", *TINY)
    assert run.returncode == 2
    for done in (run, fnll("check", "mine/method/mine.yaml"), fnll("check", "mine.yaml")):
        assert done.returncode in (1, 2)
        assert (done.stdout + done.stderr).count(hint) == 1
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("summary.json"))


def test_a_run_begun_by_an_older_version_is_refused_in_words(fnll, tmp_path):
    words = ["run", *TINY, "rounds=40", "checkpoint_seconds=0"]
    assert fnll(*words, fate=Fate("checkpoint", 40, 0)).returncode == -signal.SIGALRM
    manifest = only_run(tmp_path / "runs") / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format"', '"no format"'))
    done = fnll(*words)
    assert done.returncode == 2
    assert "was begun by an older fnll" in done.stderr
    assert "damaged" not in done.stderr
    assert "Traceback" not in done.stderr


def test_kill_at_any_moment_and_resume(fnll, tmp_path):
    """Die again and again at random moments; the run completes and equals the uninterrupted one."""
    words = ["run", *TINY, "rounds=40", "checkpoint_seconds=0", "local.epochs=3"]
    assert fnll(*words, "runs_dir=whole").returncode == 0
    rng, rows = random.Random(0), []
    for _ in range(12):
        done = fnll(*words, "runs_dir=cut", fate=Fate("cut", rng.randint(20, 100), rng.uniform(0, 0.02)))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGALRM, done.stderr
        rows += [len(path.read_bytes().splitlines()) for path in tmp_path.glob("cut/*/metrics.jsonl")]
    assert len({count for count in rows if 0 < count < 40}) >= 3, "the test must have interrupted something"
    done = fnll(*words, "runs_dir=cut")
    assert done.returncode == 0, done.stderr
    whole, cut = only_run(tmp_path / "whole"), only_run(tmp_path / "cut")
    assert whole.name == cut.name
    assert timeless(whole / "metrics.jsonl") == timeless(cut / "metrics.jsonl")
    weights = [safetensors.torch.load_file(run / "weights.safetensors") for run in (whole, cut)]
    assert same(*weights)
