"""How long a grid will take: what counts as equally fast, the arithmetic, and a measurement that ends by itself."""

import pytest

from fnll.sweep import hours
from fnll.sweep.display import SweepProgress
from fnll.sweep.grid import PlannedRun
from fnll.sweep.hours import Speeds, kind_of
from tiny import TINY

LONG = (*TINY, "fraction=0.5", "rounds=50", "seed=7")


def run(*words, method="fedavg"):
    return PlannedRun((f"method={method}", *words), method)


def test_speed_does_not_depend_on_seed_noise_and_rounds_but_on_the_rest():
    plain = kind_of(run("model=mlp"), 1)
    assert kind_of(run("model=mlp", "seed=3", "noise.rho=0.4", "noise=symmetric", "rounds=9", "runs_dir=x"), 1) == plain
    others = [run("model=lenet5"), run("model=mlp", "local.epochs=9"), run("model=mlp", method="fedrn")]
    assert len({plain, kind_of(run("model=mlp"), 5), *(kind_of(other, 1) for other in others)}) == 5


def test_a_grid_takes_the_sum_of_its_runs_by_the_number_of_processes(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(hours, "measured", lambda one, count: asked.append((one.method, count)) or 2.0)
    runs = {run("seed=0"): 10, run("seed=1"): 10, run("seed=0", method="fedrn"): 30}
    speeds = Speeds(tmp_path / "store")
    assert speeds.expected(runs, 1, 2) is None
    speeds.learn(runs, 1)
    assert asked == [("fedavg", 1), ("fedrn", 1)]
    assert speeds.expected(runs, 1, 2) == 60, "as long as its longest run"
    assert speeds.expected(runs, 1, 1) == 100
    again = Speeds(tmp_path / "store")
    again.learn(runs, 1)
    assert len(asked) == 2, "kept beside the store"
    assert again.expected(runs, 1, 1) == 100


def test_a_damaged_file_is_measured_again(tmp_path):
    (tmp_path / hours.FILE).write_text("[1, 2")
    assert Speeds(tmp_path).known == {}


@pytest.mark.parametrize("executor", ["serial", "vectorised"])
def test_a_measurement_is_short_and_leaves_nothing(tmp_path, executor):
    seconds = hours.measured(run(*LONG, f"executor={executor}", f"runs_dir={tmp_path}"), 2)
    assert seconds is not None
    assert 0 < seconds < 60
    assert not list(tmp_path.iterdir())


def test_a_sweep_counts_down_from_what_was_measured():
    now = [0.0]
    tally = SweepProgress(4, lambda: now[0], expected=100.0)
    assert tally.left() == 100
    assert SweepProgress(4, lambda: now[0]).left() is None
