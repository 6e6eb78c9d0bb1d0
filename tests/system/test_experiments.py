"""The named grids: every setting in them exists, every base config runs, and stages fit their rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fnll.harness.choices import options
from fnll.harness.execute import execute
from fnll.harness.prepare import made, prepare
from fnll.sweep.grid import PlannedRun, expand
from tiny import DATA, compose

EXPERIMENTS = sorted(options("experiment"))
SMALL = [
    *(*DATA, "dataset.samples=400", "dataset.subset=null", "dataset.imbalance=null", "model=mlp", "model.hidden=[8]"),
    *("local.epochs=1", "diagnostics_every=0", "device=cpu"),
]
FEW = ["num_clients=8", "fraction=0.5", "rounds=6"]


def covering(runs: tuple[PlannedRun, ...]) -> list[PlannedRun]:
    """Few runs in which every word of the grid occurs."""
    chosen, seen = [], set[str]()
    for planned in runs:
        if not seen.issuperset(planned.words):
            chosen.append(planned)
            seen.update(planned.words)
    return chosen


def test_the_grids_of_the_project_are_there() -> None:
    assert {"demo", "rho_tau", "h_idn", "ramp", "regime_map"} <= set(EXPERIMENTS)


@pytest.mark.parametrize(
    ("old", "table", "cells"),
    [  # cells of the paper's own table
        ("fedcorr_ablation", "fedcorr_table6", 7 * 7),
        ("fedrn_alpha", "fedrn_table8", 6 * 4),
        ("fedrn_neighbours", "fedrn_table6", 5 * 4),
        ("fednoro_detection", "fednoro_table3", 7 * 2),
        ("fednoro_ablation", "fednoro_table4", 5 * 2),
    ],
)
def test_grids_of_02_are_the_small_size_of_the_papers_tables(
    old: str, table: str, cells: int, caplog: pytest.LogCaptureFixture
) -> None:
    runs = expand([f"experiment={old}"]).runs
    assert f"experiment={old} is called experiment=paper/{table} size=mini since 0.2" in caplog.text
    assert runs == expand([f"experiment=paper/{table}", "size=mini"]).runs
    assert len({planned.label for planned in runs}) == cells


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_setting_of_a_grid_exists_and_is_legal(name: str) -> None:
    for planned in covering(expand([f"experiment={name}", "seed=0"]).runs):
        run = prepare(compose([*planned.words, *SMALL]))
        assert run.method is not None
        assert run.request.name == planned.method


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_base_config_of_a_grid_runs(name: str, tmp_path: Path) -> None:
    words = [f"experiment={name}", *SMALL, *FEW, f"runs_dir={tmp_path}"]
    short = getattr(made(compose(words).cfg.method, "method").func, "short_run", {})
    summary = execute(prepare(compose([*words, *(f"method.{key}={value}" for key, value in short.items())])))
    assert summary["finished"]
    assert not summary["diverged"]


def test_the_sizes_of_the_grids_are_the_papers() -> None:
    def cells(name: str) -> int:
        return len({planned.label for planned in expand([f"experiment={name}"]).runs})

    assert len(expand(["experiment=demo"]).runs) == 4 * 3 * 2
    assert cells("rho_tau") == 7 + 1  # FedCorr, table 2, and no clean client
    assert cells("ramp") == 3 * 4  # FedRN, table 2
    assert cells("h_idn") == 1 + 4 * 2  # FedNoRo, table 1


def test_the_oracle_of_fedrns_noise_is_the_papers() -> None:
    """It drops the samples with wrong labels; `oracle_true_labels` would train on more than anybody has there."""
    oracles = {run.method for run in expand(["experiment=ramp"]).runs if run.method.startswith("oracle")}
    assert oracles == {"oracle_drop_noisy"}


def test_fednoros_small_cells_count_rounds_as_it_does() -> None:
    assert compose(["paper=fednoro/mini", "method=fedcorr"]).cfg.budget == "rounds"


def test_the_demo_shows_each_method_in_its_papers_regime_for_the_same_budget() -> None:
    runs = expand(["experiment=demo", "seed=0"]).runs
    found = {
        compose(planned.words).choices["noise"]: compose(planned.words).cfg
        for planned in runs
        if planned.method == "fedavg"
    }
    assert set(found) == {"rho_tau", "ramp", "h_idn"}  # FedCorr's, FedRN's and FedNoRo's
    assert {cfg.rounds * int(cfg.fraction * cfg.num_clients) for cfg in found.values()} == {300}


@pytest.mark.parametrize("name", ["demo", "rho_tau", "h_idn"])
@pytest.mark.parametrize(
    "method", ["fedcorr", "fedcorr_la", "fedcorr_official", "fedrn", "fedrn_official", "fednoro", "fednoro_official"]
)
def test_stages_fit_the_rounds(name: str, method: str) -> None:
    cfg = prepare(compose([f"experiment={name}", f"method={method}"])).cfg  # with shares as numbers of rounds
    cohort = max(1, int(cfg.fraction * cfg.num_clients + 1e-9))
    if "passes" in cfg.method:
        before = cfg.method.passes * cfg.num_clients / cohort + cfg.method.finetune
        assert before <= 0.7 * cfg.rounds  # something worth the name is left for stage 3
    else:
        assert cfg.method.warmup <= 0.25 * cfg.rounds
        assert cfg.method.get("ramp_begin", 0) <= 0.25 * cfg.rounds
        assert cfg.method.get("ramp_rounds", 0) <= 0.7 * cfg.rounds
