"""The figures that a store has the records for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fnll.harness.metrics import metric_of
from fnll.harness.status import Status
from fnll.report import figures
from fnll.report.analysis import Analysis
from fnll.report.figures.clients import levels
from fnll.report.figures.lines import AXES, STEP, recorded_diagnostics
from fnll.report.side_by_side import side_by_side
from fnll.report.store import Store

MOST_PANELS = 12  # the page draws every cell on demand; a printed figure of fifty panels helps nobody
PER_CLIENT: dict[str, tuple[tuple[str, ...], str, Callable[[Store, str], Figure]]] = {
    "noise_estimates": (("noise_levels",), "Noise levels per client: true, left, estimated", figures.noise_estimates),
    "lid": (("lid", "cumulative_lid"), "LID scores and their mixture after the last pass", figures.lid),
    "lid_passes": (("lid", "cumulative_lid"), "LID scores pass by pass", figures.lid_passes),
    "confusion": (("confusion",), "Labels against the truth, before and after correction", figures.confusion),
    "confusion_first": (("confusion",), "The same of the first five clients", figures.fedcorr_8),
    "expertise": (("accuracy",), "Training accuracy against label noise", figures.expertise),
    "similarity": (("similarity",), "Similarity of clients' outputs", figures.similarity),
}

FEW = 4  # cells that are all drawn where a figure is of one cell; of more, one stands for all
IN_EVERY_CELL = ("expertise",)  # FedRN's figure 4 has two panels, by the kind of noise
AGAINST_TRUTH = ("expertise", "lid", "lid_passes")  # figures that set clients against their true noise levels
LEAST = {"confusion": 2}  # records that a figure needs: the first is of the labels as given, which every run has


@dataclass(frozen=True)
class Plate:
    """A figure with its file name and its caption."""

    name: str
    caption: str
    figure: Figure


def gallery(analysis: Analysis) -> Iterator[Plate]:
    """Every figure the store can give, one at a time."""
    yield from _curves(analysis)
    yield from _diagnostics(analysis)
    yield from _comparisons(analysis)
    yield from _clients(analysis)
    yield from (Plate(*told) for told in side_by_side(analysis, telling_cell(analysis.store)))


def telling_cell(store: Store) -> str:
    """The cell whose clients differ most in label noise, so that diagnostics have something to show."""
    runs = store.runs[(store.runs["kind"] == "method") & (store.runs["status"] == Status.FINISHED)]
    worth = {
        cell: (round(float(np.mean([_spread(levels) for levels in group["realised"]])), 2), len(group))
        for cell, group in runs.groupby("cell", sort=False)
    }
    return str(max(worth, key=lambda cell: worth[cell])) if worth else store.cell_labels[0]


def _few_cells(store: Store) -> list[str]:
    """The telling cell, and the others behind it where they are few."""
    first = telling_cell(store)
    others = [cell for cell in store.cell_labels if cell != first]
    return [first, *others] if len(others) < FEW else [first]


def _curves(analysis: Analysis) -> Iterator[Plate]:
    drawn = analysis.store.metrics[analysis.store.metrics["status"].isin([Status.FINISHED, Status.DIVERGED])]
    cells = [cell for cell in analysis.store.cell_labels if (drawn["cell"] == cell).any()]
    left_out = f" (the first {MOST_PANELS} of {len(cells)} scenarios)" if len(cells) > MOST_PANELS else ""
    cells = cells[:MOST_PANELS]
    for x, words in AXES.items():
        if cells and x in drawn and drawn[x].notna().any() and not _same_picture(drawn, x):
            caption = (
                f"{metric_of(analysis.metric).words} against {words}: mean and standard deviation over seeds{left_out}"
            )
            yield Plate(
                f"curves_{x.split('/')[-1]}",
                _sentence(caption),
                figures.curves(drawn, x, analysis.metric, cells, analysis.store.names),
            )


def _same_picture(drawn: pd.DataFrame, x: str) -> bool:
    """Whether an axis only stretches that of the rounds, by the same factor for every run."""
    if x == STEP:
        return False
    factors = (drawn[x] / drawn[STEP]).dropna()
    return bool(np.isclose(factors, factors.iloc[0], rtol=1e-9).all())


def _diagnostics(analysis: Analysis) -> Iterator[Plate]:
    cell = telling_cell(analysis.store)
    here = analysis.store.metrics[(analysis.store.metrics["cell"] == cell)]
    known = recorded_diagnostics(here)
    if known:
        yield Plate(
            "diagnostics",
            f"Diagnostics over evaluated steps, {cell}",
            figures.diagnostics(here, names=analysis.store.names),
        )
    for number, cell in enumerate(_few_cells(analysis.store), start=1):
        here = analysis.store.metrics[(analysis.store.metrics["cell"] == cell)]
        if {"select/precision", "select/recall"} <= set(recorded_diagnostics(here)):
            caption = f"Label precision and recall of the samples trained on, {cell} (compare FedRN, figure 3)"
            name = "label_quality" if number == 1 else f"label_quality_{number}"
            yield Plate(name, caption, figures.label_quality(here, names=analysis.store.names))


def _comparisons(analysis: Analysis) -> Iterator[Plate]:
    axes = [
        key for key in map(str, analysis.store.runs) if key.startswith("noise.") and _numeric(analysis.store.runs[key])
    ]
    pairs = [pair for pair in combinations(axes, 2) if _places(analysis, pair) > 1]
    if pairs and len(analysis.competing) >= 2:
        x, y = pairs[0]
        caption = f"Which method wins where, over {x} and {y}; ≈ marks a tie"
        yield Plate("regime_map", caption, figures.regime_map(analysis, x, y))
    if analysis.ranking is not None:
        caption = "Critical differences: a bar joins neighbours of whom corrected signed-rank tests tell no two apart"
        yield Plate("critical_difference", caption, figures.critical_difference(analysis))


def _clients(analysis: Analysis) -> Iterator[Plate]:
    store, telling = analysis.store, telling_cell(analysis.store)
    first = _first_runs(store, telling)
    for run in first[first["realised"].map(lambda known: bool(np.isfinite(known).any()))].head(1).itertuples():
        yield Plate(
            "noise_levels",
            f"Label noise per client, {telling}, seed {run.seed}",
            figures.noise_levels(store, str(run.run_id)),
        )
    for name, (needs, caption, draw) in PER_CLIENT.items():
        for cell in _few_cells(store) if name in IN_EVERY_CELL else [telling]:
            for run in _first_runs(store, cell).itertuples():
                if name in AGAINST_TRUTH and np.isfinite(levels(store, str(run.run_id))).sum() < 2:
                    continue  # nobody knows the true levels
                if all(len(store.facts(str(run.run_id), need)) >= LEAST.get(need, 1) for need in needs):
                    title = f"{caption}: {store.name(str(run.method))}, {cell}, seed {run.seed}"
                    yield Plate(f"{name}_{run.run_id}", title, draw(store, str(run.run_id)))


def _first_runs(store: Store, cell: str) -> pd.DataFrame:
    """The finished run of each method in a cell that has the smallest seed."""
    runs = store.runs[(store.runs["cell"] == cell) & (store.runs["status"] == Status.FINISHED)]
    return runs.sort_values("seed").drop_duplicates("method")


def _places(analysis: Analysis, pair: tuple[str, str]) -> int:
    """How many places of a map the runs fill: those of other noise models lack the settings."""
    return len(analysis.store.runs[list(pair)].dropna().drop_duplicates())


def _numeric(column: pd.Series) -> bool:
    known = column.dropna()
    return len(known) > 0 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in known)


def _spread(levels: tuple[float, ...]) -> float:
    known = [v for v in levels if not np.isnan(v)]
    return float(np.std(known)) if known else 0.0


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
