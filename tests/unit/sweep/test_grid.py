"""What the words of `fnll sweep` expand to."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from fnll.errors import UserError
from fnll.harness.choices import options
from fnll.harness.config import compose
from fnll.sweep.grid import PlannedRun, _word, expand, shard

Experiment = Callable[[str], Path]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """Write an experiment `mine` and return the folder to name with --config-dir."""

    def write(text: str, name: str = "mine") -> Path:
        path = tmp_path / "experiment" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# @package _global_\n{text}")
        return tmp_path

    return write


def texts(*words: str, config_dir: Path | None = None) -> list[str]:
    """The expanded words of every run, without `experiment=`."""
    grid = expand(words, [config_dir] if config_dir else [])
    return [" ".join(word for word in run.words if not word.startswith("experiment=")) for run in grid.runs]


def test_commas_and_range_make_a_product_with_the_seed_slowest_and_the_method_fastest() -> None:
    assert texts("method=fedavg,fedprox", "noise.rho=0.4,0.8", "seed=range(2)") == [
        "method=fedavg noise.rho=0.4 seed=0",
        "method=fedprox noise.rho=0.4 seed=0",
        "method=fedavg noise.rho=0.8 seed=0",
        "method=fedprox noise.rho=0.8 seed=0",
        "method=fedavg noise.rho=0.4 seed=1",
        "method=fedprox noise.rho=0.4 seed=1",
        "method=fedavg noise.rho=0.8 seed=1",
        "method=fedprox noise.rho=0.8 seed=1",
    ]


def test_words_without_alternatives_are_one_run_and_are_passed_on_as_typed() -> None:
    assert texts("dataset.subset=1e2", "method=choice(fedavg)") == ["dataset.subset=1e2 method=fedavg"]
    assert texts() == [""]


def test_a_list_is_a_value_and_not_a_sweep() -> None:
    assert texts("method=fedcorr", "method.mixup_stages=[1,2],[]") == [
        "method=fedcorr method.mixup_stages=[1,2]",
        "method=fedcorr method.mixup_stages=[]",
    ]


def test_glob_finds_the_choices_of_a_group_and_those_of_a_config_dir(tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "fedmine.yaml").write_text("{}")
    found = texts("method=glob(fed*,exclude=[*_official,fedc*])", config_dir=tmp_path)
    wanted = [name for name in options("method") if name.startswith("fed") and not name.endswith("_official")]
    assert found == [f"method={name}" for name in sorted([*wanted, "fedmine"]) if not name.startswith("fedc")]
    assert "method=fedmine" in found


def test_cells_are_a_list_and_params_a_product(experiment: Experiment) -> None:
    folder = experiment("sweep: {cells: [{noise.rho: 0.4, noise.tau: 0}, {noise.rho: 0.8}], params: {seed: '0,1'}}")
    assert texts("experiment=mine", config_dir=folder) == [
        "seed=0 noise.rho=0.4 noise.tau=0",
        "seed=0 noise.rho=0.8",
        "seed=1 noise.rho=0.4 noise.tau=0",
        "seed=1 noise.rho=0.8",
    ]


def test_words_win_over_params_and_cells_and_duplicates_are_dropped(experiment: Experiment) -> None:
    folder = experiment(
        "sweep: {cells: [{noise.rho: 0.4, noise.tau: 0}, {noise.rho: 0.8, noise.tau: 0}], params: {seed: range(9)}}"
    )
    assert texts("experiment=mine", "seed=7", "noise.rho=0.1", config_dir=folder) == [
        "seed=7 noise.rho=0.1 noise.tau=0"
    ]


def test_a_group_on_the_command_line_takes_the_cells_choice_of_it_with_its_settings(experiment: Experiment) -> None:
    folder = experiment(
        "sweep: {cells: [{partition: shards, partition.per_client: 2, noise.rho: 0.4}, {noise.rho: 0.8}]}"
    )
    found = texts("experiment=mine", "partition=iid", config_dir=folder)
    assert found == ["partition=iid noise.rho=0.4", "partition=iid noise.rho=0.8"]


def test_several_experiments_follow_each_other(experiment: Experiment) -> None:
    experiment("sweep: {cells: [{noise.rho: 0.4}]}", "one")
    folder = experiment("sweep: {cells: [{noise.rho: 0.8}]}", "two")
    runs = expand(["experiment=one,two"], [folder]).runs
    assert [run.words for run in runs] == [("experiment=one", "noise.rho=0.4"), ("experiment=two", "noise.rho=0.8")]
    assert [run.label for run in runs] == ["one rho=0.4", "two rho=0.8"]


def test_words_about_the_sweep_itself_stay_with_it() -> None:
    grid = expand(["sweep.launcher=submitit", "+sweep.submitit.slurm_partition=gpu", "seed=0,1"])
    assert [run.words for run in grid.runs] == [("seed=0",), ("seed=1",)]
    assert grid.settings["launcher"] == "submitit"
    assert grid.settings["submitit"]["slurm_partition"] == "gpu"


def test_a_job_says_what_it_is_and_how_to_repeat_it(experiment: Experiment) -> None:
    folder = experiment("sweep: {cells: [{method.mixup_stages: [1, 2]}], params: {method: fedcorr}}")
    (run,) = expand(["experiment=mine", "seed=3"], [folder]).runs
    assert str(run) == "fedcorr seed 3"
    program, verb, *rest = shlex.split(run.command)
    assert (program, verb) == ("fnll", "run")
    assert rest == [f"--config-dir={folder}", *run.words]
    assert compose(run.words, [folder]).cfg.method.mixup_stages == [1, 2]


def test_a_label_names_settings_and_only_the_choice_of_a_group() -> None:
    runs = expand(["num_clients=6,8", "partition=iid,shards", "noise.rho=0.2,0.4"]).runs
    assert str(runs[0]) == "fedavg num_clients=6 iid rho=0.2"
    assert str(runs[-1]) == "fedavg num_clients=8 shards rho=0.4"


def test_the_method_of_a_job_is_the_experiments_own_if_nothing_else_is_said(experiment: Experiment) -> None:
    folder = experiment("defaults: [{override /method: fedprox}]\nsweep: {params: {seed: '0,1'}}")
    assert {run.method for run in expand(["experiment=mine"], [folder]).runs} == {"fedprox"}


@pytest.mark.parametrize("n", [1, 3, 8])
def test_shards_are_a_partition(n: int) -> None:
    runs = [PlannedRun((f"seed={i}",), "fedavg") for i in range(20)]
    parts = [shard(runs, f"{i + 1}/{n}") for i in range(n)]
    assert sorted(run.words for part in parts for run in part) == sorted(run.words for run in runs)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3"])
def test_a_shard_that_is_none_is_refused(part: str) -> None:
    with pytest.raises(UserError, match="--shard"):
        shard([PlannedRun(("seed=0",), "fedavg")], part)


def test_a_setting_in_cells_and_params_is_refused(experiment: Experiment) -> None:
    folder = experiment("sweep: {cells: [{noise.rho: 0.4}], params: {noise.rho: '0.4,0.8'}}")
    with pytest.raises(UserError, match=r"noise\.rho is in sweep\.cells and in sweep\.params"):
        expand(["experiment=mine"], [folder])


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-99, 99), st.floats(-9, 9), st.text("ab0 ,='\"\\[]{}()$.", max_size=6)
)


@settings(max_examples=60, deadline=None)
@given(value=st.one_of(scalars, st.lists(scalars, max_size=3)))
def test_a_cells_value_arrives_as_it_is(value: object) -> None:
    try:
        word = _word("noise.rho", value)
    except UserError:
        assert "\\" in repr(value)  # Hydra's grammar has no way to write some strings with backslashes
        return
    assert OverridesParser.create().parse_override(word).value() == value
