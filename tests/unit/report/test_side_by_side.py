"""Figures that lay several runs side by side, best and last in one table, and detection over mixtures."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from fnll.cli.report import add_arguments
from fnll.errors import UserError
from fnll.report import analyse, figures, load
from fnll.report.best_last import best_last_table
from fnll.report.command import main
from fnll.report.detections import Detections
from fnll.report.fednoro_table3 import Rates, repeat_detection
from fnll.report.figures.clients import by_class
from fnll.report.figures.papers import borders, latest_local
from fnll.report.gallery import telling_cell
from fnll.report.mixtures import indicators, mixture_rates
from fnll.report.side_by_side import side_by_side
from fnll.testing.store import write_run


def fact(name: str, value: object, t: int = 1, stage: str = "train") -> dict[str, object]:
    return {"step": t, "t": t, "stage": stage, "name": name, "value": value}


def test_best_and_last_stand_below_each_other(tmp_path: Path) -> None:
    for method, curve in (("fedavg", [0.5, 0.9, 0.4]), ("fedcorr", [0.6, 0.6, 0.6])):
        write_run(tmp_path, method, curve)
    table = best_last_table(analyse(load(tmp_path).renamed({"fedcorr": "Ours"})))
    assert [row.label for row in table.rows] == ["fedavg · best", "fedavg · last", "Ours · best", "Ours · last"]
    assert [row.entries[0].text for row in table.rows] == ["90.00", "60.00", "60.00", "60.00"]
    assert set(table.data["select"]) == {"best", "last10"}


def test_fedcorr_4_pairs_a_method_with_itself_inside_fedcorr(tmp_path: Path) -> None:
    write_run(tmp_path, "median", [0.5])
    write_run(tmp_path, "fedcorr", [0.8], choices={"method@method.usual": "median"})
    write_run(tmp_path, "fedcorr", [0.7], config={"rounds": 1})
    figure = figures.fedcorr_4(analyse(load(tmp_path)))
    (ax,) = figure.axes
    assert ax.get_title() == "median"
    assert [round(float(bar.get_height())) for bar in ax.patches] == [50, 80]
    write_run(tmp_path / "one", "median", [0.5])
    with pytest.raises(UserError, match="both alone and"):
        figures.fedcorr_4(analyse(load(tmp_path / "one")))


def test_fedcorr_9_has_the_borders_of_stages_and_the_ends_of_curves(tmp_path: Path) -> None:
    staged = {"stage": ["a", "a", "b", "c"], "comm/client_updates": [10, 20, 30, 40]}
    write_run(tmp_path, "fedcorr", [0.1, 0.2, 0.3, 0.4], metrics=staged)
    write_run(tmp_path, "fedavg", [0.1, 0.5], metrics={"comm/client_updates": [10, 20]})
    frame = load(tmp_path).metrics
    assert borders(frame[frame["method"] == "fedcorr"]) == [20.0, 30.0]
    (ax,) = figures.fedcorr_9(frame).axes
    dotted = [float(np.asarray(line.get_xdata())[0]) for line in ax.lines if line.get_linestyle() == ":"]
    assert dotted == [20.0, 30.0]
    ends = {float(np.asarray(line.get_xdata())[-1]) for line in ax.lines if line.get_marker() == "o"}
    assert ends == {40.0, 20.0}


def test_fedcorr_5_has_a_panel_per_network(tmp_path: Path) -> None:
    facts = [fact("cumulative_lid", [1.0, 2.0, 3.0, 9.0])]
    noise = {"realised": [0.0, 0.0, 0.0, 0.5], "nominal": [0.0, 0.0, 0.0, 0.5]}
    for network in ("mlp", "lenet5"):
        write_run(tmp_path, "fedcorr", [0.1], choices={"model": network}, diagnostics=facts, manifest=noise)
    made = {name: figure for name, _, figure in side_by_side(analyse(load(tmp_path)), load(tmp_path).cell_labels[0])}
    assert {ax.get_title() for ax in made["architectures"].axes} == {"mlp", "lenet5"}


def drawn(root: Path) -> dict[str, object]:
    store = load(root)
    return {name: figure for name, _, figure in side_by_side(analyse(store), telling_cell(store))}


def test_fedcorr_9_takes_ablations_with_shorter_budgets_along(tmp_path: Path) -> None:
    """Runs of one scenario (its fingerprint) are one figure, although their rounds make them other cells."""
    scenario = {"manifest": {"fingerprint": "5ce7a510"}}
    for rounds, settings in ((1000, {}), (500, {"method.finetune": 0}), (550, {"method.finetune": None})):
        end = [10.0 * rounds * part for part in (0.1, 0.5, 1.0)]
        write_run(
            tmp_path, "fedcorr", [0.1, 0.2, 0.3], config={"rounds": rounds, "method.finetune": 7, **settings},
            metrics={"stage": ["a", "b", "c"], "comm/client_updates": end}, **scenario,
        )  # fmt: skip
    shorter = {"rounds": 30, "method.finetune": 7}
    write_run(tmp_path, "fedcorr", [0.1] * 3, config=shorter, **scenario)  # the whole method, which is there already
    elsewhere = {"manifest": {"fingerprint": "07e4"}}
    write_run(tmp_path, "fedcorr", [0.1] * 3, config={"rounds": 40, "method.finetune": 3}, **elsewhere)
    network = {"choices": {"model": "mlp"}}
    write_run(tmp_path, "fedcorr", [0.1] * 3, config={"rounds": 60, "method.finetune": 5}, **scenario, **network)
    store = load(tmp_path)
    assert len(store.cell_labels) == 6
    cell = store.runs.loc[store.runs["rounds"] == 1000, "cell"].iloc[0]
    made = {name: figure for name, _, figure in side_by_side(analyse(store), cell)}
    (ax,) = made["stages"].axes
    ends = {float(np.asarray(line.get_xdata())[-1]) for line in ax.lines if line.get_marker() == "o"}
    assert ends == {5000.0, 5500.0, 10000.0}


def test_a_report_draws_what_the_store_has_the_records_for(tmp_path: Path) -> None:
    facts = [
        fact("upload_accuracy", {"0": 0.2, "1": 0.9}),
        fact("confusion", [[[1, 0], [0, 3]], [[4, 0], [0, 0]]], 0, "given"),
        fact("similarity", [[1.0, 0.2], [0.2, 1.0]]),
    ]
    staged = {"stage": ["a", "b"]}
    for noise in ([0.0, 0.0], [0.1, 0.5]):
        seen = {"diagnostics": facts, "manifest": {"realised": noise}, "metrics": staged}
        write_run(tmp_path, "median", [0.5, 0.6], seed=int(10 * noise[1]), **seen)
    write_run(tmp_path, "fedcorr", [0.8, 0.9], choices={"method@method.usual": "median"})
    assert set(drawn(tmp_path)) == {"alone_and_with_fedcorr", "stages", "local_models", "similarities"}
    write_run(tmp_path, "median", [0.5, 0.6], choices={"partition": "shards"}, diagnostics=facts)
    assert "partitions" in drawn(tmp_path)


def test_fedcorr_2_shows_what_clients_hold_smallest_first(tmp_path: Path) -> None:
    facts = [fact("confusion", [[[3, 1], [0, 2]], None, [[1, 0], [0, 0]]], 0, "given"), fact("confusion", [None], 1)]
    run = write_run(tmp_path, "fedavg", [0.5], diagnostics=facts)
    (ax,) = figures.fedcorr_2(load(tmp_path), [run]).axes
    tops = [max(path.vertices[:, 1].max() for path in bars.get_paths()) for bars in ax.collections]
    assert tops == [4.0, 6.0], "stacked: four of the first class, and two of the second on top"
    left = [[path.vertices[:, 1].max() for path in bars.get_paths()] for bars in ax.collections]
    assert left == [[0.0, 1.0, 4.0], [0.0, 1.0, 6.0]]


def test_fedrn_1_sorts_clients_by_noise_and_takes_the_last_model_of_each(tmp_path: Path) -> None:
    facts = [fact("upload_accuracy", {"0": 0.2, "1": 0.9}), fact("upload_accuracy", {"0": 0.3, "2": 0.5}, t=2)]
    run = write_run(tmp_path, "fedavg", [0.1], diagnostics=facts, manifest={"realised": [0.8, 0.0, 0.4]})
    store = load(tmp_path)
    assert latest_local(store, run) == {0: 0.3, 1: 0.9, 2: 0.5}
    (ax,) = figures.fedrn_1(store, [run]).axes
    assert [round(float(bar.get_height()), 1) for bar in ax.patches] == [0.9, 0.5, 0.3]


def test_fedrn_5_orders_clients_by_class_and_shows_both_worlds(tmp_path: Path) -> None:
    held = [[[0, 0], [0, 5]], [[5, 0], [0, 0]], [[0, 0], [1, 4]], [[3, 2], [0, 0]]]  # classes 1, 0, 1, 0
    alike = np.array([[1, 0, 9, 0], [0, 1, 0, 9], [9, 0, 1, 0], [0, 9, 0, 1]])
    runs = []
    for seed, noise in enumerate((0.0, 0.4)):
        facts = [fact("confusion", held, 0, "given"), fact("similarity", alike.tolist())]
        runs.append(
            write_run(tmp_path, "fedrn", [0.1], seed=seed, diagnostics=facts, manifest={"realised": [noise] * 4})
        )
    store = load(tmp_path)
    assert by_class(store, runs[0], 4) == [1, 3, 0, 2]
    figure = figures.fedrn_5(store, *runs)
    assert [ax.get_title() for ax in figure.axes[:2]] == ["without label noise", "label noise 0.4 to 0.4"]
    shown = np.asarray(figure.axes[0].images[0].get_array())
    assert shown[0, 1] == shown[2, 3] == 9  # clients with the same class are neighbours now


def test_fedrn_5_has_one_scale_for_all_panels(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path, "fedrn", [0.1], seed=seed, diagnostics=[fact("similarity", [[1.0, least], [least, 1.0]])])
        for seed, least in enumerate((0.99, 0.1))
    ]
    shown = figures.fedrn_5(load(tmp_path), *runs).axes[:2]
    assert [ax.images[0].get_clim() for ax in shown] == [(0.1, 1.0)] * 2


INDICATOR = [[0.1, 0.1], [0.12, 0.1], [0.11, 0.12], [0.9, 0.95], [0.92, 0.9], None]


def detecting(root: Path, warmup: int, seed: int = 0, **settings: object) -> str:
    given = {"method.covariance": "diag", "method.warmup": warmup, "method.ramp_begin": warmup, **settings}
    return write_run(
        root, "fednoro", [0.1, 0.2], seed=seed, config=given,
        diagnostics=[fact("indicator", INDICATOR, warmup + 1)],
        manifest={"realised": [0.0, 0.0, 0.0, 0.5, 0.5, 0.0], "nominal": [0.0] * 6},
    )  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_mixture_rates_are_computed_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "runs" / detecting(tmp_path / "runs", 2)
    found = mixture_rates(run, range(4))
    assert found == repeat_detection(INDICATOR, {3, 4}, range(4), "diag") == Rates(1.0, 1.0, 1.0)
    monkeypatch.setattr("fnll.report.mixtures.repeat_detection", lambda *_: pytest.fail("computed again"))
    assert mixture_rates(run, range(4)) == found
    assert [one.t for one in indicators(run)] == [2]
    assert mixture_rates(tmp_path / "runs" / write_run(tmp_path / "runs", "fedavg", [0.1])) is None


def test_a_report_scores_detection_over_mixtures(tmp_path: Path, cache: Path) -> None:
    for warmup in (2, 4):
        detecting(tmp_path / "runs", warmup)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = [tmp_path / "runs", "--out", tmp_path / "out", "--mixtures", "3", "--no-figures"]
    assert main(parser.parse_args([*map(str, words)])) == 0
    assert "100.00" in (tmp_path / "out" / "tables" / "mixtures.md").read_text()
    found = Detections.of(load(tmp_path / "runs"), 3)
    assert found.warmups == 2
    (ax,) = found.figure().axes
    assert [line.get_label() for line in ax.lines] == ["Re", "Pr", "MR"]
    assert list(np.asarray(ax.lines[0].get_xdata())) == [2, 4]


def test_the_lengths_of_warm_ups_are_compared_among_runs_that_differ_in_nothing_else(
    tmp_path: Path, cache: Path
) -> None:
    alike = [detecting(tmp_path, warmup, seed) for warmup in (2, 4, 6) for seed in (0, 1)]
    detecting(tmp_path, 4, **{"method.indicator": "lid"})
    detecting(tmp_path, 5, **{"noise.rho": 0.1})
    found = Detections.of(load(tmp_path), 2)
    assert found.warmups == 3
    assert sorted(found._alike()) == sorted(alike)
    (ax,) = found.figure().axes
    assert list(np.asarray(ax.lines[0].get_xdata())) == [2, 4, 6]


def test_mixtures_without_an_indicator_are_one_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, "fedavg", [0.1])
    with pytest.raises(UserError, match="recorded an indicator"):
        Detections.of(load(tmp_path), 10)
