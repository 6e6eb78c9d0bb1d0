"""Published numbers and outside curves beside ours, on made-up runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
import pytest

from fnll.cli.report import add_arguments
from fnll.errors import UserError
from fnll.plotting.palette import colour_of
from fnll.report import load
from fnll.report.command import main
from fnll.report.figures.published import published, reference_curves
from fnll.report.outside import overlays, reference_table
from fnll.report.published import Comparison, comparisons
from fnll.report.published_tables import as_list, as_printed, ordered
from fnll.report.render import to_markdown
from fnll.report.store import Store
from fnll.testing.store import write_run

FEDCORR = {
    "method.correction": True, "method.stage1_cohort": 1, "method.beta": 5.0, "method.mixup_stages": [1],
    "method.finetune": 500,
}  # fmt: skip
PAPER = {"num_clients": 100, "fraction": 0.1}
CHOICES = {"dataset": "cifar10", "model": "lenet5"}


def cell(root: Path, method: str, best: float, *, seed: int = 0, **settings: object) -> str:
    config = {**PAPER, "noise.rho": 0.6, "noise.tau": 0.5, **(FEDCORR if "fedcorr" in method else {}), **settings}
    return write_run(root, method, [0.1, best, 0.2], seed=seed, config=config, choices=CHOICES)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    root = tmp_path / "runs"
    for seed, best in enumerate((0.66, 0.68)):
        cell(root, "fedcorr", best, seed=seed)
    cell(root, "fedcorr", 0.5, **{"method.beta": 0.0})
    cell(root, "fedavg", 0.61)
    return load(root)


def of(found: list[Comparison], name: str) -> Comparison:
    (one,) = (comparison for comparison in found if comparison.printed.name == name)
    return one


def test_our_runs_stand_beside_the_cell_they_are(store: Store) -> None:
    found = comparisons(store)
    assert [comparison.printed.name for comparison in found] == ["fedcorr_table10"]  # LeNet-5 is in no other
    (beside,) = of(found, "fedcorr_table10").cells
    assert (beside.record.row, beside.record.column) == ("LeNet-5", "ρ=0.6 τ=0.5")
    assert beside.mean == pytest.approx(67.0)
    assert beside.std == pytest.approx(2**0.5)
    assert beside.difference == pytest.approx(67.0 - 67.48)
    assert beside.within is True
    assert beside.reasons == ("rounds 3 (1000)", "trials 2 (5)")


def test_a_table_that_is_named_is_compared_on_any_data(store: Store) -> None:
    (found,) = comparisons(store, "fedcorr_table6")
    rows = {beside.record.row: beside for beside in found.cells}
    assert set(rows) == {"FedCorr", "FedCorr w/o local proximal"}
    assert rows["FedCorr w/o local proximal"].mean == pytest.approx(50.0)
    assert "model lenet5 (cifar_resnet18)" in rows["FedCorr"].reasons
    assert rows["FedCorr"].within is False
    assert ordered(found) == (1, 1)


def test_runs_that_were_made_for_the_table_come_before_others_that_fit(tmp_path: Path) -> None:
    """Another table varies what this one does not name: its runs fit, and are none of this table's."""
    root = tmp_path / "runs"
    config = {**PAPER, "noise.rho": 0.6, "noise.tau": 0.5, **FEDCORR}
    for seed, (experiment, best) in enumerate([("paper/fedcorr_table6", 0.7), ("paper/fedcorr_table3", 0.1)]):
        choices = {**CHOICES, "experiment": experiment}
        write_run(root, "fedcorr", [0.1, best], seed=seed, config=config, choices=choices)
    (found,) = comparisons(load(root), "fedcorr_table6")
    assert [beside.values for beside in found.cells if beside.record.row == "FedCorr"] == [(pytest.approx(70.0),)]
    (other,) = comparisons(load(root), "fedcorr_table2")
    (whole,) = [beside for beside in other.cells if beside.record.row == "FedCorr"]
    assert len(whole.values) == 2, "none was made for this one: all that fit"


def test_runs_of_a_figure_come_last(tmp_path: Path) -> None:
    """FedNoRo's figure 4 varies the warm-up, which its table 3 does not name."""
    config = {**PAPER, "noise.rho": 0.6, "noise.tau": 0.5, **FEDCORR}
    root = tmp_path / "runs"
    for seed, (experiment, best) in enumerate([("paper/fedcorr_fig9", 0.1), ("paper/fedcorr_table2", 0.6)]):
        write_run(root, "fedcorr", [best], seed=seed, config=config, choices={**CHOICES, "experiment": experiment})
    (found,) = comparisons(load(root), "fedcorr_table6")
    assert [beside.values for beside in found.cells if beside.record.row == "FedCorr"] == [(pytest.approx(60.0),)]
    (none,) = comparisons(load(root), "fedcorr_table10")
    assert len(none.cells) == 1


def test_fedcorr_with_another_method_inside_is_not_fedcorrs_row(tmp_path: Path) -> None:
    cell(tmp_path, "fedcorr", 0.6)
    plain = comparisons(load(tmp_path), "fedcorr_table10")[0].cells
    inside = {"config": {**PAPER, **FEDCORR, "noise.rho": 0.6, "noise.tau": 0.5}}
    write_run(tmp_path, "fedcorr", [0.9], choices={**CHOICES, "method@method.usual": "feddyn"}, **inside)
    assert comparisons(load(tmp_path), "fedcorr_table10")[0].cells == plain


def test_a_label_that_names_the_departures_is_believed(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    cell(
        root, "fedcorr", 0.7, protocol="paper, but rounds 3 (1000), local.epochs 1 (5)", **{"dataset.images": "folder"}
    )
    (beside,) = comparisons(load(root), "fedcorr_table10")[0].cells
    assert beside.reasons[1] == "rounds 3 (1000), local.epochs 1 (5)"
    assert beside.reasons[0].startswith("data copy")
    assert beside.within is False  # one run has no spread of its own: the printed 0.54 decides


def test_a_cost_that_is_never_reached_has_no_number(store: Store) -> None:
    (found,) = comparisons(store, "fedcorr_table12")
    costs = {beside.record.row: beside for beside in found.cells}
    assert costs["FedCorr"].values == (20.0, 20.0)  # the second evaluation, ten clients a round
    assert costs["FedCorr"].difference == 20.0 - 110
    text = to_markdown(as_printed(found))
    assert "not reached (300)" in text
    assert "20 ± 0 (110)" in text


def test_tables_say_ours_theirs_and_why(store: Store) -> None:
    (found,) = comparisons(store, "fedcorr_table10")
    grid, cells = as_printed(found), as_list(found)
    assert [row.label for row in grid.rows] == ["ResNet-18", "VGG-11", "LeNet-5 · fedcorr (β=5)"]
    assert "67.00 ± 1.41 (67.48 ± 0.54)" in [entry.text for entry in grid.rows[2].entries]
    assert grid.rows[0].entries[0].text == "– (93.82 ± 0.41)"
    assert [entry.text for entry in cells.rows[0].entries[:5]] == [
        "ρ=0.6 τ=0.5", "67.00 ± 1.41 (n=2)", "67.48 ± 0.54", "−0.48", "yes",
    ]  # fmt: skip
    assert {"ours", "published", "difference", "within", "reasons", "run_ids"} <= set(cells.data)


def test_best_and_last_are_rows_of_one_table(tmp_path: Path) -> None:
    settings = {
        "partition.p": 0.9, "partition.alpha": 2.0, "noise.rho": 0.4, "noise.eta_low": 0.3, "noise.eta_high": 0.5,
    }  # fmt: skip
    choices = {"dataset": "ich", "model": "resnet18", "partition": "bernoulli_dirichlet", "noise": "h_idn"}
    bacc = {"test/balanced_accuracy": [0.6, 0.7, 0.5]}
    write_run(tmp_path, "fedavg", [0.1, 0.2, 0.3], config=settings, choices=choices, metrics=bacc)
    (found,) = comparisons(load(tmp_path), "fednoro_table1")
    assert {cell.record.select: round(cell.mean, 2) for cell in found.cells} == {"best": 70.0, "last10": 60.0}
    labels = [row.label for row in as_printed(found).rows]
    assert labels[:2] == ["FedAvg · best", "FedAvg · last10"]


def test_what_cannot_be_compared_is_said(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="bench --suite passes"):
        comparisons(store, "fedrn_table10")
    with pytest.raises(UserError, match="no finished run"):
        comparisons(store, "fednoro_table1")
    write_run(tmp_path / "digits", "fedavg", [0.1])
    with pytest.raises(UserError, match="--published fedcorr_table2"):
        comparisons(load(tmp_path / "digits"))


def curves(path: Path, **columns: object) -> Path:
    frame = {"method": "fedavg", "rho": 0.6, "tau": 0.5, "trial": [0, 0, 1, 1], "row": [0, 1, 0, 1]}
    pd.DataFrame({**frame, "accuracy": [40.0, 60.0, 50.0, 64.0], **columns}).to_csv(path, index=False)
    return path


def test_outside_curves_end_where_ours_end(store: Store, tmp_path: Path) -> None:
    path = curves(tmp_path / "logs.csv.gz")
    (overlay,) = overlays(store, path)
    assert overlay.method == "fedavg"
    assert list(overlay.theirs["x"]) == [2, 3, 2, 3]
    assert list(overlay.theirs["y"]) == [0.4, 0.6, 0.5, 0.64]
    row = reference_table([overlay], path).rows[0]
    assert [entry.text for entry in row.entries[1:4]] == ["61.00 (1)", "62.00 ± 2.83 (2)", "−1.00"]


def test_outside_curves_of_other_settings_or_columns_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"told apart by noise\.rho, noise\.tau"):
        overlays(store, curves(tmp_path / "a.csv", rho=0.5))
    with pytest.raises(UserError, match="lacks round"):
        overlays(store, pd_write(tmp_path / "b.csv", {"method": ["fedavg"], "accuracy": [1.0]}))
    with pytest.raises(UserError, match="can be read"):
        overlays(store, tmp_path / "none.csv")


def pd_write(path: Path, columns: dict[str, list[object]]) -> Path:
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def test_the_report_has_the_section_the_tables_and_the_figures(store: Store, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = [store.root, "--out", tmp_path / "out", "--published", "fedcorr_table10"]
    path = curves(tmp_path / "logs.csv")
    assert main(parser.parse_args([*map(str, words), "--reference-curves", str(path), "--no-figures"])) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'id="published"' in page
    assert "67.00 ± 1.41 (67.48 ± 0.54)" in page
    for name in ("published_fedcorr_table10", "published_fedcorr_table10_cells", "reference_curves"):
        assert (tmp_path / "out" / "tables" / f"{name}.tex").exists()
    assert "FedCorr, table 10, ours (published)" in capsys.readouterr().out


def test_figures_draw_the_diagonal_and_both_curves(store: Store, tmp_path: Path) -> None:
    (ax,) = published(comparisons(store, "fedcorr_table10")).axes
    assert any(list(line.get_xdata()) == list(line.get_ydata()) for line in ax.lines)
    elsewhere = {colour_of(key) for key in store.methods}
    assert {line.get_color() for line in ax.lines} - {"#999999"} <= elsewhere
    (ax,) = reference_curves(overlays(store, curves(tmp_path / "logs.csv"))).axes
    assert {"theirs", "ours"} <= {str(line.get_label()) for line in ax.lines}
    assert {line.get_color() for line in ax.lines if line.get_label() == "ours"} <= elsewhere
