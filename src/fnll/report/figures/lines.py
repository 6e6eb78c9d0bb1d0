"""Curves over evaluated steps, client updates, bytes or seconds, with bands over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from fnll.harness.metrics import group_of, metric_of
from fnll.harness.status import Status
from fnll.plotting.palette import Look, looks
from fnll.plotting.style import legend_below, panels, styled, title, whole_numbers

STEP = "step"
AXES = {
    STEP: "step (m client updates each)",
    **{key: metric_of(key).words for key in ("comm/client_updates", "comm/bytes", "time/total_s")},
}
Names = Mapping[str, str]
NAMELESS: Names = {}
FEW = 10  # points that are marked: some diagnostics come once a stage


class Band(NamedTuple):
    """Mean and standard deviation over seeds along a common grid."""

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    seeds: int


def band(frame: pd.DataFrame, x: str, y: str) -> Band:
    """The runs in `frame` on one grid, over the range all cover; where their steps agree nothing is interpolated."""
    runs = [g[[x, y]].dropna().to_numpy(float) for _, g in frame.groupby("run_id", sort=False)]
    runs = [run for run in runs if len(run)]
    low, high = max(run[0, 0] for run in runs), min(run[-1, 0] for run in runs)
    grid = np.unique(np.concatenate([run[:, 0] for run in runs]))
    if any(len(run) != len(grid) for run in runs):
        grid = np.linspace(low, high, max(len(run) for run in runs))
    values = np.array([np.interp(grid, run[:, 0], run[:, 1]) for run in runs])
    std = values.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(grid))
    return Band(grid, values.mean(axis=0), std, len(runs))


def edges(line: Band, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean minus and plus the standard deviation; a share stays between 0 and 1."""
    low, high = line.mean - line.std, line.mean + line.std
    return (np.maximum(low, 0.0), np.minimum(high, 1.0)) if metric_of(y).is_fraction else (low, high)


def curves(
    frame: pd.DataFrame,
    x: str = STEP,
    y: str = "test/accuracy",
    cells: Sequence[str] | None = None,
    names: Names = NAMELESS,
) -> Figure:
    """`y` against `x`, one panel per cell: mean over seeds with a band of one standard deviation.

    `frame` is `store.metrics` or a part of it, `names` what the legend calls its methods (`store.names`). Diverged runs
    are not in the mean: each is a thin line that ends in ×.
    """
    present = frame["cell"].astype("category").cat.remove_unused_categories().cat.categories
    shown = [str(cell) for cell in present] if cells is None else list(cells)
    styles = _looks(frame)
    with styled():
        figure, axes = panels(len(shown), share=True)
        for ax, cell in zip(axes, shown, strict=True):
            _panel(ax, frame[frame["cell"] == cell], x, y, styles, names)
            title(ax, cell)
        _label(axes, x, y)
        legend_below(figure, axes)
    return figure


def diagnostics(
    frame: pd.DataFrame, x: str = STEP, keys: Sequence[str] | None = None, names: Names = NAMELESS
) -> Figure:
    """Every diagnostic that methods recorded, one panel each; give it the rows of one cell."""
    shown = recorded_diagnostics(frame) if keys is None else list(keys)
    styles = _looks(frame)
    with styled():
        figure, axes = panels(len(shown))
        for ax, key in zip(axes, shown, strict=True):
            _panel(ax, frame[frame[key].notna()], x, key, styles, names)
            title(ax, metric_of(key).words)
            _label([ax], x, key)
            ax.set_ylabel("")
        legend_below(figure, axes)
    return figure


def recorded_diagnostics(frame: pd.DataFrame) -> list[str]:
    """The diagnostics that have a value somewhere in `frame`."""
    return [key for key in map(str, frame) if group_of(key).diagnostic and frame[key].notna().any()]


def label_quality(frame: pd.DataFrame, x: str = STEP, names: Names = NAMELESS) -> Figure:
    """Label precision and label recall of the samples methods train on (FedRN, figure 3)."""
    return diagnostics(frame, x, ["select/precision", "select/recall"], names)


def _looks(frame: pd.DataFrame) -> dict[str, Look]:
    methods = [str(m) for m in frame["method"].astype("category").cat.categories]
    return looks(methods, set(frame.loc[frame["kind"] != "method", "method"]))


def _panel(ax: Axes, frame: pd.DataFrame, x: str, y: str, styles: dict[str, Look], names: Names) -> None:
    for method, runs in frame.groupby("method", observed=True):
        look, name = styles[str(method)], names.get(str(method), str(method))
        whole, lost = runs[runs["status"] == Status.FINISHED], runs[runs["status"] == Status.DIVERGED]
        if whole[y].notna().any():
            line = band(whole, x, y)
            dots = "." if len(line.x) <= FEW else None  # a single point has no line
            ax.plot(line.x, line.mean, color=look.colour, linestyle=look.dash, marker=dots, label=name)
            ax.fill_between(line.x, *edges(line, y), color=look.colour, alpha=0.15, lw=0)
        for _, run in lost.dropna(subset=[y]).groupby("run_id"):
            ax.plot(run[x], run[y], color=look.colour, linestyle="dotted", lw=0.8, marker="x", markevery=[-1])
            ax.plot([], [], color=look.colour, linestyle="dotted", marker="x", label=f"{name}, diverged run")


def _label(axes: Sequence[Axes], x: str, y: str) -> None:
    for ax in axes:
        ax.set_xlabel(AXES.get(x, x) if ax.xaxis.get_tick_params().get("labelbottom", True) else "")
        ax.set_ylabel(metric_of(y).words if ax.yaxis.get_tick_params().get("labelleft", True) else "")
        if metric_of(y).is_fraction:
            ax.yaxis.set_major_formatter(PercentFormatter(1.0))
            ax.set_ylim(*_within(*ax.get_ylim()))
        if x == "step":
            whole_numbers(ax.xaxis)
        if x == "comm/bytes":
            ax.xaxis.set_major_formatter(EngFormatter("B"))


def _within(low: float, high: float) -> tuple[float, float]:
    """The limits of an axis of shares: hardly beyond 0 and 1, so that a line there is still whole."""
    room = 0.02 * (high - low)
    return max(low, -room), min(high, 1 + room)
