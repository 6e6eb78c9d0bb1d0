"""Which method when: regime maps and critical-difference diagrams."""

from __future__ import annotations

import numpy as np
import pandas as pd
import scikit_posthocs as sp
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fnll.errors import UserError
from fnll.harness.metrics import metric_of
from fnll.plotting.style import panels, styled
from fnll.report.analysis import Analysis
from fnll.report.cells import SYMBOLS, show, sortable

ALPHA = 0.05  # below it a corrected test tells two methods apart


def regime_map(analysis: Analysis, x: str = "noise.rho", y: str = "noise.tau") -> Figure:
    """The winner and its margin over the runner-up, at every pair of two settings; a panel for each rest of the cell.

    The deeper a colour, the larger the margin; ≈ marks a winner that another method is tied with.
    """
    winners = regime(analysis, x, y)
    facets = list(dict.fromkeys(winners["facet"]))
    with styled():
        figure, axes = panels(len(facets), columns=2, width=4.6, height=3.4)
        for ax, facet in zip(axes, facets, strict=True):
            _map(ax, winners[winners["facet"] == facet], analysis, float(winners["margin"].max()))
            ax.set(xlabel=_axis(x), ylabel=_axis(y), title=facet)
        figure.suptitle(
            f"Best {metric_of(analysis.metric).words} ({analysis.rule.label}),\nmargin over the runner-up", size=9
        )
    return figure


def regime(analysis: Analysis, x: str, y: str) -> pd.DataFrame:
    """One row per cell that has both settings: x, y, facet, winner, margin, tied.

    A margin is NaN without a runner-up; `tied`: another method is tied with the winner.
    """
    runs = analysis.store.runs
    for key in (x, y):
        if key not in runs:
            raise UserError(f"a regime map needs two settings that differ, and {key} does not in {analysis.store.root}")
    place = {str(run["cell"]): run for run in runs.drop_duplicates("cell").to_dict("records")}
    competing = analysis.cells[(analysis.cells["kind"] == "method") & analysis.cells["mean"].notna()]
    rows = []
    for cell, group in competing.groupby("cell", sort=False):
        ordered = group.sort_values("mean", ascending=not analysis.scores.higher)
        margin = abs(ordered["mean"].iloc[0] - ordered["mean"].iloc[1]) if len(ordered) > 1 else np.nan
        here = place[str(cell)]
        if pd.isna(here[x]) or pd.isna(here[y]):
            continue  # a noise model without such a setting has no place on the map
        facet = f"{here['dataset']} · {here['partition']}"
        rows.append((here[x], here[y], facet, ordered["method"].iloc[0], margin, bool(group["tied"].any())))
    return pd.DataFrame(rows, columns=["x", "y", "facet", "winner", "margin", "tied"])


def critical_difference(analysis: Analysis) -> Figure:
    """Average ranks over scenarios; a bar joins neighbours in rank of whom Holm-corrected signed-rank tests tell no two
    apart."""
    ranking = analysis.ranking
    if ranking is None:
        raise UserError("a critical-difference diagram needs two methods with at least six scenarios in common")
    with styled():
        figure = Figure(figsize=(6.6, 1.2 + 0.28 * len(ranking.ranks)), layout="constrained")
        ax = figure.subplots()
        ax.grid(visible=False)
        names, matrix = analysis.store.name, ranking.p_matrix()
        sp.critical_difference_diagram(
            ranking.ranks.rename(index=names),
            _in_one_stretch(matrix, list(ranking.ranks.sort_values().index)).rename(index=names, columns=names),
            ax=ax,
            label_fmt_left="{label} ({rank:.2f})  ",
            label_fmt_right="  ({rank:.2f}) {label}",
            color_palette={names(row): analysis.looks[row].colour for row in map(str, ranking.ranks.index)},
            crossbar_props={"linewidth": 3, "color": "#333333"},
        )
        ax.set_title(f"Average rank over {len(ranking.blocks)} scenarios (1 is best)", pad=18)
    return figure


def _in_one_stretch(matrix: pd.DataFrame, order: list[str]) -> pd.DataFrame:
    """1 for two methods if neither they nor any two between them in rank are told apart, 0 otherwise.

    Signed-rank tests can part two methods and leave both with others further away. With a bar for every such set,
    twenty methods have dozens of bars that run through each other.
    """
    alike = matrix.loc[order, order].to_numpy() >= ALPHA
    joined = np.eye(len(order))
    for first in range(len(order)):
        for last in range(first + 1, len(order)):
            if alike[first : last + 1, first : last + 1].all():
                joined[first, last] = joined[last, first] = 1.0
    return pd.DataFrame(joined, index=order, columns=order)


def _map(ax: Axes, winners: pd.DataFrame, analysis: Analysis, largest: float) -> None:
    xs, ys = (sorted(set(winners[name]), key=sortable) for name in ("x", "y"))
    scale = 100 if metric_of(analysis.metric).is_fraction else 1
    for row in winners.to_dict("records"):
        at, margin, winner = (
            (xs.index(row["x"]) - 0.5, ys.index(row["y"]) - 0.5),
            float(row["margin"]),
            str(row["winner"]),
        )
        depth = 0.25 + 0.6 * (margin / largest if largest > 0 and np.isfinite(margin) else 0)
        colour = [1 - depth * (1 - c) for c in to_rgb(analysis.looks[winner].colour)]
        ax.add_patch(Rectangle(at, 1, 1, facecolor=colour, edgecolor="white", linewidth=2))
        lead = "" if np.isnan(margin) else f"\n+{scale * margin:.2f}"
        text = f"{analysis.store.name(winner)}{' ≈' if row['tied'] else ''}{lead}"
        ax.text(at[0] + 0.5, at[1] + 0.5, text, ha="center", va="center", fontsize=8, color=_ink(colour))
    ax.set_xticks(range(len(xs)), [show(v) for v in xs])
    ax.set_yticks(range(len(ys)), [show(v) for v in ys])
    ax.set(xlim=(-0.5, len(xs) - 0.5), ylim=(-0.5, len(ys) - 0.5))
    ax.grid(visible=False)


def _axis(key: str) -> str:
    leaf = key.rsplit(".", 1)[-1]
    return SYMBOLS.get(leaf, leaf)


def _ink(colour: list[float]) -> str:
    luminance = float(np.dot(colour, (0.2126, 0.7152, 0.0722)))
    return "#111111" if luminance > 0.45 else "#ffffff"
