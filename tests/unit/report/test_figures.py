"""Figures: the numbers they draw, and that each can be drawn from a run's records alone."""

import numpy as np
import pandas as pd
import pytest

from fnll.errors import UserError
from fnll.plotting.palette import COLOURS, YARDSTICK, colour_of, looks
from fnll.report import analyse, figures, load
from fnll.report.figures.comparison import _in_one_stretch
from fnll.report.gallery import FEW, gallery, telling_cell
from fnll.testing.example import write_store
from fnll.testing.store import write_run


def lines(ax):
    """{label: y values} of the drawn lines."""
    return {line.get_label(): line.get_ydata() for line in ax.get_lines() if not line.get_label().startswith("_")}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return load(write_store(root, cells=((0.4, 0.0), (0.6, 0.5)), seeds=2, rounds=12))


def run_of(store, method):
    runs = store.runs[(store.runs["method"] == method) & (store.runs["cell"] == "ρ=0.6 τ=0.5")]
    return runs.sort_values("seed")["run_id"].iloc[0]


def test_a_band_is_mean_and_sample_deviation_over_seeds():
    frame = pd.DataFrame({"run_id": list("aabb"), "x": [1, 2, 1, 2], "y": [1.0, 3.0, 2.0, 7.0]})
    band = figures.band(frame, "x", "y")
    assert (band.x.tolist(), band.mean.tolist(), band.seeds) == ([1, 2], [1.5, 5.0], 2)
    assert band.std.tolist() == pytest.approx([np.sqrt(0.5), np.sqrt(8)])


def test_runs_on_different_grids_are_compared_where_both_are():
    frame = pd.DataFrame({"run_id": list("aabb"), "x": [0.0, 4.0, 2.0, 6.0], "y": [0.0, 4.0, 2.0, 6.0]})
    band = figures.band(frame, "x", "y")
    assert (band.x[0], band.x[-1]) == (2.0, 4.0)
    assert band.mean.tolist() == band.x.tolist()  # both runs are y = x


@pytest.mark.parametrize("x", ["step", "comm/client_updates", "comm/bytes", "time/total_s"])
def test_curves_have_a_panel_per_cell_and_a_line_per_method(store, x):
    figure = figures.curves(store.metrics, x=x)
    assert [ax.get_title() for ax in figure.axes] == ["ρ=0.4 τ=0", "ρ=0.6 τ=0.5"]
    assert sorted(lines(figure.axes[0])) == sorted(store.methods)


def test_a_diverged_run_is_drawn_by_itself(tmp_path):
    write_run(tmp_path, "fedavg", [0.5, 0.6], seed=0)
    write_run(tmp_path, "fedavg", [0.1, None], seed=1, ending="diverged")
    drawn = lines(figures.curves(load(tmp_path).metrics).axes[0])
    assert drawn["fedavg"].tolist() == [0.5, 0.6]
    assert "fedavg, diverged run" in drawn


def test_colours_stay_with_methods_when_some_are_left_out(store):
    part = store.metrics[store.metrics["method"].isin(["fednoro", "oracle"])]
    for frame in (store.metrics, part):
        colours = {line.get_label(): line.get_color() for line in figures.curves(frame).axes[0].get_lines()}
        assert colours["fednoro"] == colour_of("fednoro") == COLOURS[2]
        assert colours["oracle"] == YARDSTICK


def test_many_methods_differ_by_more_than_colour():
    found = looks([f"m{i}" for i in range(20)])
    assert len({(look.colour, look.dash) for look in found.values()}) == 20


def test_diagnostics_show_what_was_recorded(store):
    here = store.metrics[store.metrics["cell"] == "ρ=0.6 τ=0.5"]
    titles = [ax.get_title() for ax in figures.diagnostics(here).axes]
    assert "wrong labels memorised" in titles
    assert sorted(lines(figures.label_quality(here).axes[0])) == ["fednoro", "fedrn"]


def test_the_regime_map_knows_winner_margin_and_tie(tmp_path):
    for seed, shift in enumerate((0.0, 0.01, -0.01)):
        for rho, tau, fedavg, fedcorr in ((0.4, 0.0, 0.9, 0.8), (0.8, 0.5, 0.5, 0.7), (0.4, 0.5, 0.6, 0.6 + shift)):
            config = {"noise.rho": rho, "noise.tau": tau}
            write_run(tmp_path, "fedavg", [fedavg] * 10, seed=seed, config=config)
            write_run(tmp_path, "fedcorr", [fedcorr] * 10, seed=seed, config=config)
    analysis = analyse(load(tmp_path))
    found = figures.regime(analysis, "noise.rho", "noise.tau").set_index(["x", "y"])
    assert (found.loc[(0.4, 0.0), "winner"], found.loc[(0.8, 0.5), "winner"]) == ("fedavg", "fedcorr")
    assert found["margin"].tolist() == pytest.approx([0.1, 0.0, 0.2])
    texts = [text.get_text() for text in figures.regime_map(analysis).axes[0].texts]
    assert "fedcorr\n+20.00" in texts


def test_cells_of_other_noise_models_have_no_place_on_the_map(tmp_path):
    def add(**noise):
        for method in ("fedavg", "fedcorr"):
            write_run(tmp_path, method, [0.5] * 10, config={"noise": noise})

    add(rho=0.4, tau=0.5)
    add(rho=0.6, eta_low=0.3)
    add(high=0.8)
    assert "regime_map" not in [plate.name for plate in gallery(analyse(load(tmp_path)))]
    add(rho=0.8, tau=0.0)
    analysis = analyse(load(tmp_path))
    assert "regime_map" in [plate.name for plate in gallery(analysis)]
    assert sorted(figures.regime(analysis, "noise.rho", "noise.tau")["x"]) == [0.4, 0.8]


def test_figures_that_need_more_say_so(store):
    with pytest.raises(UserError, match="six scenarios"):
        figures.critical_difference(analyse(store))
    with pytest.raises(UserError, match=r"noise\.eta"):
        figures.regime_map(analyse(store), x="noise.eta")
    with pytest.raises(UserError, match="recorded no 'lid'"):
        figures.lid(store, run_of(store, "fedavg"))


def test_critical_differences_join_what_cannot_be_told_apart(tmp_path):
    write_store(tmp_path, methods=["fedavg", "fedcorr", "fedprox"], seeds=1, rounds=12)
    figure = figures.critical_difference(analyse(load(tmp_path)))
    texts = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "fedcorr (1." in texts


def test_no_bar_runs_over_methods_that_are_told_apart():
    """b and c are, so a, which neither is told from, is joined to its neighbour alone."""
    matrix = pd.DataFrame(1.0, index=list("abc"), columns=list("abc"))
    matrix.loc["b", "c"] = matrix.loc["c", "b"] = 0.01
    joined = _in_one_stretch(matrix, list("abc"))
    assert joined.to_numpy().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert (_in_one_stretch(matrix, list("bac")).loc["b"] == [1, 1, 0]).all()


@pytest.mark.parametrize(
    ("name", "method", "panels"),
    [
        ("fedcorr_3", "fedcorr", 4),
        ("fedcorr_6", "fedcorr", 10),
        ("fedcorr_7", "fedcorr", 1),
        ("fedcorr_8", "fedcorr", 18),
        ("fedrn_4", "fedrn", 1),
        ("fedrn_5", "fedrn", 2),
        ("noise_levels", "fedavg", 1),
    ],
)
def test_the_papers_figures_from_records_alone(store, name, method, panels):
    figure = getattr(figures, name)(store, run_of(store, method))
    assert len(figure.axes) == panels


def test_clients_and_classes_have_no_halves(store):
    for figure in (figures.fedrn_5(store, run_of(store, "fedrn")), figures.fedcorr_8(store, run_of(store, "fedcorr"))):
        ax = figure.axes[0]
        assert all(tick == round(tick) for axis in (ax.xaxis, ax.yaxis) for tick in axis.get_ticklocs())


def test_fedcorr_8_follows_the_labels_through_the_stages(store):
    figure = figures.fedcorr_8(store, run_of(store, "fedcorr"))
    everyone = figure.axes[::6]  # one row per stage: all clients, then five of them
    assert [ax.get_ylabel().split("\n")[0] for ax in everyone] == ["given", "preprocessing", "finetuning"]
    shares = [float(ax.get_title().removeprefix("all clients: ").split("%")[0]) for ax in everyone]
    assert shares == sorted(shares, reverse=True)


def test_confusion_shows_the_noisiest_clients_and_figure_8_the_first_five(tmp_path):
    right, wrong = [[9, 0], [0, 9]], [[4, 5], [5, 4]]
    facts = [{"step": 0, "t": 0, "name": "confusion", "value": [right] * 7 + [wrong, right, wrong]}]
    run_id = write_run(tmp_path, "fedcorr", [0.1], diagnostics=facts)
    titles = [ax.get_title() for ax in figures.confusion(load(tmp_path), run_id).axes]
    assert titles[0] == "all clients: 11.1% wrong"
    assert titles[-2:] == ["client 7: 55.6% wrong", "client 9: 55.6% wrong"]
    first = [ax.get_title() for ax in figures.fedcorr_8(load(tmp_path), run_id).axes]
    assert [title.split(":")[0] for title in first[1:]] == [f"client {k}" for k in range(5)]


def test_small_shares_have_labels_of_their_own(tmp_path):
    write_run(tmp_path, "fedcorr", [0.1] * 4, metrics={"labels/broken": [0.001, 0.002, 0.004, 0.003]})
    ax = figures.diagnostics(load(tmp_path).metrics).axes[0]
    for axis in (ax.xaxis, ax.yaxis):
        labels = axis.get_major_formatter().format_ticks(axis.get_ticklocs())
        assert len(set(labels)) == len(labels)
    assert all(tick == round(tick) for tick in ax.get_xticks())  # rounds


def test_fedcorr_7_shows_sample_detection_where_it_was_recorded(tmp_path):
    counts = {"client": [3, 7], "tp": [5, 6], "fp": [1, 0], "fn": [0, 2], "tn": [4, 4]}
    facts = [
        {"step": 1, "t": 1, "name": "noise_levels", "value": [0.1] * 20},
        {"step": 1, "t": 1, "name": "sample_detection", "value": counts},
    ]
    run_id = write_run(tmp_path, "fedcorr", [0.1], diagnostics=facts)
    figure = figures.fedcorr_7(load(tmp_path), run_id)
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["3", "7"]
    assert sum(bar.get_height() for bar in figure.axes[1].patches) == 22


def fact(t, name, value, stage="preprocessing", at=1):
    return {"step": at, "t": t, "stage": stage, "name": name, "value": value}


def test_fedcorr_7_compares_the_estimate_with_the_labels_of_that_moment(tmp_path):
    """Not with those that stage 2 leaves; and of several iterations in one evaluation the last is drawn."""
    facts = [
        fact(0, "per_client_noise", [0.9] * 20, "given", at=0),
        fact(20, "noise_levels", [0.7] * 20),
        fact(20, "sample_detection", {"client": [3, 7], "tp": [5, 6], "fp": [1, 0], "fn": [0, 2], "tn": [4, 4]}),
        fact(40, "noise_levels", [0.5] * 20),
        fact(40, "sample_detection", {"client": [3], "tp": [5], "fp": [1], "fn": [0], "tn": [4]}),
        fact(40, "per_client_noise", [0.4] * 20),
        fact(44, "per_client_noise", [0.01] * 20, "finetuning"),
        fact(45, "sample_detection", {"client": [9], "tp": [1], "fp": [1], "fn": [0], "tn": [4]}, "usual"),
    ]
    run_id = write_run(tmp_path, "fedcorr", [0.1], diagnostics=facts)
    top, bottom = figures.fedcorr_7(load(tmp_path), run_id).axes
    drawn = lines(top)
    assert (drawn["estimated"][0], drawn["true, after preprocessing"][0]) == (0.5, 0.4)
    assert [label.get_text() for label in bottom.get_xticklabels()] == ["3"]


def test_fedcorr_6_draws_each_pass_with_its_own_mixture(tmp_path):
    """Two passes may be over before one evaluation, which writes them under the same round."""
    facts = []
    for t, centre in ((20, 3.0), (40, 7.0)):
        scores = [centre - 1] * 10 + [centre + 1 + 0.01 * i for i in range(10)]
        gmm = {"means": [centre - 1, centre + 1], "variances": [0.01, 0.01], "weights": [0.5, 0.5]}
        facts += [fact(t, "lid", scores), fact(t, "cumulative_lid", scores), fact(t, "lid_gmm", gmm)]
    run_id = write_run(tmp_path, "fedcorr", [0.1], diagnostics=facts)
    cumulative = figures.fedcorr_6(load(tmp_path), run_id).axes[2:]
    peaks = [line.get_xdata()[line.get_ydata().argmax()] for ax in cumulative for line in ax.get_lines()
             if line.get_label() == "mixture"]  # fmt: skip
    assert peaks == pytest.approx([2.0, 6.0], abs=0.05)


@pytest.mark.parametrize("scores", [[2.0] * 20, [None] * 20, [None] * 19 + [1.0]])
def test_lid_figures_of_runs_where_nothing_can_be_separated(tmp_path, scores):
    run_id = write_run(
        tmp_path, "fedcorr", [0.1], diagnostics=[fact(1, "lid", scores), fact(1, "cumulative_lid", scores)]
    )
    for figure in (figures.fedcorr_3(load(tmp_path), run_id), figures.fedcorr_6(load(tmp_path), run_id)):
        assert "mixture" not in {label for ax in figure.axes for label in lines(ax)}
        figures.encode(figure, "png")


def test_fedcorr_8_of_summed_matrices_does_not_call_them_a_client(tmp_path):
    facts = [fact(0, "confusion", [[[3, 1], [1, 3]]], "given", at=0)]
    run_id = write_run(tmp_path, "fedcorr", [0.1], diagnostics=facts)
    assert [ax.get_title() for ax in figures.fedcorr_8(load(tmp_path), run_id).axes] == ["all clients: 25.0% wrong"]


def test_legends_fit_into_narrow_figures(tmp_path):
    for i in range(6):
        write_run(tmp_path, f"method_with_a_name_{i}", [0.1, 0.2])
    figure = figures.curves(load(tmp_path).metrics)  # one panel
    figures.encode(figure, "png")
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert figure.axes[0].get_window_extent().height / figure.dpi > 1.2  # the panel is not squeezed by it


def test_a_diagnostic_that_came_once_is_seen(tmp_path):
    write_run(tmp_path, "fednoro", [0.1, 0.2, 0.3])
    frame = load(tmp_path).metrics.assign(**{"detect/recall": [np.nan, 1.0, np.nan]})
    (line,) = figures.diagnostics(frame, keys=["detect/recall"]).axes[0].get_lines()
    assert line.get_marker() == "."


def test_small_shares_keep_their_digits(tmp_path):
    write_run(tmp_path, "fedcorr", [0.1, 0.2])
    frame = load(tmp_path).metrics.assign(**{"labels/broken": [0.0007, 0.0028]})
    figure = figures.diagnostics(frame, keys=["labels/broken"])
    figures.encode(figure, "png")
    ticks = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(set(ticks)) == len(ticks)


def test_the_gallery_draws_all_that_the_store_allows(store):
    names = [plate.name.split("_fed")[0] for plate in gallery(analyse(store))]
    # Here the other axes only stretch that of the steps: one picture is enough.
    assert [name for name in names if name.startswith("curves_")] == ["curves_step"]
    assert {"diagnostics", "label_quality", "regime_map", "lid", "confusion", "expertise", "similarity"} <= set(names)
    assert telling_cell(store) == "ρ=0.6 τ=0.5"


def test_figures_of_one_cell_are_drawn_of_each_where_cells_are_few(tmp_path):
    """FedRN's figures 3 and 4 have a panel for each kind of noise."""

    def drawn(folder, cells):
        write_store(folder, methods=["fedrn"], cells=cells, seeds=1, rounds=2)
        return sorted(plate.name.split("_fed")[0] for plate in gallery(analyse(load(folder))))

    names = drawn(tmp_path / "few", [(0.4, 0.0), (0.6, 0.5)])
    assert {"label_quality", "label_quality_2"} <= set(names)
    assert names.count("expertise") == 2
    names = drawn(tmp_path / "many", [(0.1 * i, 0.5) for i in range(1, FEW + 2)])
    assert [name for name in names if name.startswith("label_quality")] == ["label_quality"]
    assert names.count("expertise") == 1


def test_labels_that_nobody_corrected_make_no_figure_of_a_correction(tmp_path):
    given = {"step": 0, "t": 0, "name": "confusion", "value": [[[4, 5], [5, 4]]]}
    write_run(tmp_path, "fedavg", [0.1], diagnostics=[given])
    corrected = write_run(tmp_path, "fedcorr", [0.1], diagnostics=[given, {**given, "step": 1, "t": 1}])
    names = [plate.name for plate in gallery(analyse(load(tmp_path)))]
    drawn = [name for name in names if name.startswith("confusion")]
    assert drawn == [f"confusion_{corrected}", f"confusion_first_{corrected}"]


def test_the_same_figure_gives_the_same_bytes(store, tmp_path):
    runs = [figures.save(figures.noise_levels(store, run_of(store, "fedavg")), tmp_path / str(i)) for i in range(2)]
    assert [path.suffix for path in runs[0]] == [".svg", ".png"]
    for first, second in zip(*runs, strict=True):
        assert first.read_bytes() == second.read_bytes()
    (pdf,) = figures.save(figures.noise_levels(store, run_of(store, "fedavg")), tmp_path / "paper", ["pdf"])
    assert pdf.read_bytes().startswith(b"%PDF")
