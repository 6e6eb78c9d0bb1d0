"""The made-up runs of the tests have the form of real ones, and the report reads from a real one what it wrote."""

import json

import pytest
import yaml

from fnll.harness.config import compose
from fnll.harness.execute import execute
from fnll.harness.metrics import SCORES, TOP5
from fnll.harness.prepare import prepare
from fnll.harness.run_folder import RunFolder
from fnll.report import load, scores
from fnll.testing.store import write_run

TINY = ["model=mlp", "num_clients=3", "dataset.subset=60", "local.epochs=1", "rounds=12", "eval_every=2"]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    store = tmp_path_factory.mktemp("real")
    run = prepare(compose([*TINY, "diagnostics_every=0", f"runs_dir={store}"]))
    execute(run)
    return store / run.run_id


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    store = tmp_path_factory.mktemp("made_up")
    return store / write_run(store, "fedavg", [0.1, 0.2])


def always(keys):
    """Without what only runs with more than five classes have."""
    return [key for key in keys if key != TOP5]


def test_their_files_have_the_keys_of_a_real_run(real, made_up):
    for name in ("manifest.json", "summary.json"):
        wanted, found = (json.loads((folder / name).read_text()) for folder in (real, made_up))
        assert list(found) == always(wanted), name
    wanted, found = (RunFolder(folder).rows()[-1] for folder in (real, made_up))
    assert list(found) == always(wanted)
    wanted, found = (yaml.safe_load((folder / "config.yaml").read_text()) for folder in (real, made_up))
    assert set(found) <= set(wanted)
    assert set(found["choices"]) <= set(wanted["choices"])


def test_the_report_finds_in_a_real_run_what_its_summary_says(real):
    rows, summary = RunFolder(real).rows(), RunFolder(real).summary()
    assert [row["step"] for row in rows] == [2, *range(3, 13)], "the last ten are evaluated whatever eval_every says"
    store = load(real.parent)
    for metric in SCORES:
        for rule, expected in summary[metric].items():
            assert scores(store, metric, rule).frame["value"].iloc[0] == pytest.approx(expected), (metric, rule)


@pytest.mark.parametrize("ending", ["unfinished", "declined", "failed", "diverged", "finished"])
def test_an_ending_is_read_back(tmp_path, ending):
    write_run(tmp_path, "fedavg", [0.1], ending=ending, note="because")
    (row,) = load(tmp_path).runs.to_dict("records")
    assert row["status"] == ending
