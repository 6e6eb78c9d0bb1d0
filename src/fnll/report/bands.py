"""Curves for the page: numbers as they are shown, mean and spread over seeds at every evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fnll.harness.metrics import group_of, metric_of
from fnll.harness.status import Status
from fnll.report.figures.lines import AXES, STEP
from fnll.report.store import Store

POINTS = 100  # per curve
ALL_POINTS = 40_000  # points of one quantity over all curves, which bounds the page
NONE = -1  # no array


class SharedArrays:
    """Arrays, each stored once: rounds and costs are the same for most runs."""

    def __init__(self) -> None:
        self.arrays: list[list[float | None]] = []
        self._known: dict[tuple[float | None, ...], int] = {}

    def add(self, values: Iterable[float], key: str) -> int:
        """The number of the array with these values of the quantity `key`, as a reader sees them."""
        array = tuple(shown(v, key) for v in values)
        if array not in self._known:
            self._known[array] = len(self.arrays)
            self.arrays.append(list(array))
        return self._known[array]


def shown(value: float, key: str) -> float | None:
    """A number as it is printed: shares in per cent with two digits, others with four that count; else null."""
    if value is None or not math.isfinite(value):
        return None
    text = f"{100 * value:.2f}" if key not in AXES and metric_of(key).is_fraction else f"{value:.4g}"
    number = float(f"{value:.6g}") if key in AXES else float(text)
    return int(number) if number.is_integer() else number


class Line(NamedTuple):
    """One run: a column per quantity, a row per evaluation."""

    columns: dict[str, np.ndarray]

    def of(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Rounds and values of the evaluations that have `key`."""
        known = np.isfinite(self.columns[key])
        return self.columns[STEP][known], self.columns[key][known]


def curves(store: Store, metrics: Sequence[str], rows: Sequence[str]) -> dict[str, Any]:
    """Arrays, bands by `method,cell` and quantity, and the runs' own lines by metric; unfinished runs have none."""
    axes = [key for key in AXES if key in store.metrics]
    known = [key for key in map(str, store.metrics) if group_of(key).diagnostic and key not in metrics]
    lines = _lines(store, [*axes, *metrics, *known])
    most = max(20, min(POINTS, ALL_POINTS // max(1, len(store.runs))))
    shared = SharedArrays()
    finished = store.runs[store.runs["status"] == Status.FINISHED]
    bands: dict[str, dict[str, Any]] = {}
    cells = {label: i for i, label in enumerate(store.cell_labels)}
    for (method, cell), group in finished.groupby(["method", "cell"], sort=False):
        here = [lines[run] for run in group["run_id"] if run in lines]
        drawn = {key: _band(here, key, axes, shared, most) for key in (*metrics, *known)}
        bands[f"{rows.index(method)},{cells[str(cell)]}"] = {key: band for key, band in drawn.items() if band}
    done = set(store.runs.loc[store.runs["status"].isin([Status.FINISHED, Status.DIVERGED]), "run_id"])
    own = [
        _own(lines[run], metrics, axes, shared, most) if run in done and run in lines else {}
        for run in store.runs["run_id"]
    ]
    return {"arrays": shared.arrays, "bands": bands, "curves": own, "quantities": [*metrics, *known]}


def _lines(store: Store, keys: Sequence[str]) -> Mapping[str, Line]:
    table = store.metrics[list(keys)].to_numpy(float)
    groups = store.metrics.groupby("run_id", sort=False).indices
    return {str(run): Line(dict(zip(keys, table[rows].T, strict=True))) for run, rows in groups.items()}


def _band(lines: Sequence[Line], key: str, axes: Sequence[str], shared: SharedArrays, most: int) -> list[Any] | None:
    """[array of x for each axis, mean, low, high] over the rounds that all runs cover; nothing where none does.

    Runs of one method are evaluated after the same rounds, so nothing is interpolated, but for diagnostics that come
    when they come.
    """
    parts = [line.of(key) for line in lines]
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return None
    low, high = max(x[0] for x, _ in parts), min(x[-1] for x, _ in parts)
    grid = np.unique(np.concatenate([x for x, _ in parts]))
    grid = _thin(grid[(grid >= low) & (grid <= high)], most)
    if not len(grid):
        return None
    values = np.array([np.interp(grid, x, y) for x, y in parts])
    mean, std = values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(grid))
    bounds = (0.0, 1.0) if metric_of(key).is_fraction else (-np.inf, np.inf)
    edges = [np.clip(mean + sign * std, *bounds) for sign in (-1, 1)]
    x_of = [
        np.mean([np.interp(grid, line.columns[STEP], line.columns[axis]) for line in lines], axis=0) for axis in axes
    ]
    drawn = [shared.add(edge, key) for edge in edges] if len(values) > 1 else [NONE, NONE]
    return [[shared.add(x, axis) for x, axis in zip(x_of, axes, strict=True)], shared.add(mean, key), *drawn]


def _own(
    line: Line, metrics: Sequence[str], axes: Sequence[str], shared: SharedArrays, most: int
) -> dict[str, list[Any]]:
    """By metric: [array of x for each axis, values] of one run."""
    rows = _thin(np.arange(len(line.columns[STEP])), most)
    xs = [shared.add(line.columns[axis][rows], axis) for axis in axes]
    return {
        key: [xs, shared.add(line.columns[key][rows], key)] for key in metrics if np.isfinite(line.columns[key]).any()
    }


def _thin(values: np.ndarray, most: int) -> np.ndarray:
    """At most so many of them: evenly spread, with both ends."""
    return values[np.unique(np.linspace(0, len(values) - 1, min(len(values), most)).round().astype(int))]
