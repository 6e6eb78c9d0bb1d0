"""What the page computes with: the store as compact JSON.

Equal arrays are stored once and referred to by number (rounds and costs are the same for most runs), curves are thinned
to what a screen can show, and numbers are rounded to what a reader can see. A thousand runs make a few megabytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fnll.harness.metrics import SCORES, group_of, metric_of
from fnll.harness.status import Status
from fnll.report.analysis import Analysis, analyse
from fnll.report.figures.lines import AXES
from fnll.report.footnotes import noise_levels
from fnll.report.select import RULES, available_rules
from fnll.report.store import Store

DIGITS = 5
POINTS = 100  # per curve
ALL_POINTS = 40_000  # points of one quantity over all curves, which bounds the page


class Shared:
    """Arrays, each stored once."""

    def __init__(self) -> None:
        self.arrays: list[list[float | None]] = []
        self._known: dict[tuple[float | None, ...], int] = {}

    def add(self, values: Iterable[float]) -> int:
        """The number of the array with these values."""
        array = tuple(rounded(v) for v in values)
        if array not in self._known:
            self._known[array] = len(self.arrays)
            self.arrays.append(list(array))
        return self._known[array]


def rounded(value: float) -> float | None:
    """A number of a curve to five significant digits, and null if it is not finite."""
    exact = finite(value)
    return None if exact is None else finite(float(f"{exact:.{DIGITS}g}"))


def finite(value: float) -> float | None:
    """What is not finite is null, which JSON has. Numbers of tables stay whole: the page rounds them as tables do."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(value)


def payload(analysis: Analysis, first: str) -> dict[str, Any]:
    """Everything the page needs, as plain JSON values; its curves start at the cell `first`."""
    store = analysis.store
    metrics = [m for m in dict.fromkeys([analysis.metric, *SCORES]) if m in store.metrics]
    rules = available_rules(store)
    analyses = {f"{m}|{r}": analyse(store, m, r, analysis.reference) for m in metrics for r in rules}
    return {
        "reference": analysis.reference,
        "start": {
            "metric": analysis.metric,
            "rule": analysis.rule.name,
            "cell": store.cell_labels.index(first),
        },
        "metrics": [_metric(m) for m in metrics],
        "rules": [{"key": rule, "label": RULES[rule].label} for rule in rules],
        "axes": [{"key": key, "label": label} for key, label in AXES.items() if key in store.metrics],
        "methods": [_method(analysis, method) for method in analysis.rows],
        "cells": _cells(store),
        "grid": {key: _grid(one, analysis.rows) for key, one in analyses.items()},
        "runs": _runs(analysis, analyses),
        **_curves(store, metrics),
    }


def _metric(key: str) -> dict[str, Any]:
    metric = metric_of(key)
    return {"key": key, "label": metric.words, "percent": metric.is_fraction, "higher": metric.higher}


def _method(analysis: Analysis, method: str) -> dict[str, Any]:
    look = analysis.looks[method]
    dash = {"solid": "", "dashed": "6 4", "dotted": "2 3", "dashdot": "7 3 2 3"}[look.dash]
    return {"name": method, "kind": analysis.store.kind(method), "colour": look.colour, "dash": dash}


def _cells(store: Store) -> list[dict[str, str]]:
    return [
        {
            "label": cell.label,
            "dataset": cell.dataset,
            "partition": cell.partition,
            "noise": cell.noise,
            "other": cell.other,
            "levels": levels,
        }
        for cell, levels in zip(store.cells, noise_levels(store), strict=True)
    ]


def _grid(analysis: Analysis, rows: Sequence[str]) -> list[list[Any]]:
    """One list per (method, cell) with a run, in the order of `report.js`: FIELDS."""
    order = {method: i for i, method in enumerate(rows)}
    columns = {cell: i for i, cell in enumerate(analysis.store.cell_labels)}
    gains = _lookup(analysis.differences, ["difference", "low", "high", "pairs"]) if analysis.reference else {}
    shares = _lookup(analysis.recovered, ["share", "pairs"]) if analysis.reference and analysis.oracle else {}
    return [
        [
            order[row.method],
            columns[row.cell],
            finite(row.mean),
            finite(row.std),
            row.n,
            row.seeds,
            row.diverged,
            2 if row.best else 1 if row.tied else 0,
            *(finite(v) for v in gains.get((row.method, row.cell), (math.nan, math.nan, math.nan, 0))),
            *(finite(v) for v in shares.get((row.method, row.cell), (math.nan, 0))),
            row.reason,
        ]
        for row in _records(analysis.cells)
    ]


def _records(frame: pd.DataFrame) -> Iterable[Any]:
    return frame.itertuples()


def _lookup(frame: pd.DataFrame, columns: list[str]) -> dict[tuple[str, str], tuple[float, ...]]:
    keys = zip(frame["method"], frame["cell"], strict=True)
    return dict(zip(keys, frame[columns].itertuples(index=False, name=None), strict=True))


def _runs(analysis: Analysis, analyses: Mapping[str, Analysis]) -> dict[str, Any]:
    """The runs column by column."""
    runs, store = analysis.store.runs, analysis.store
    order = {method: i for i, method in enumerate(analysis.rows)}
    columns = {cell: i for i, cell in enumerate(store.cell_labels)}
    values = {key: [finite(v) for v in one.scores.frame["value"]] for key, one in analyses.items()}
    return {
        "id": list(runs["run_id"]),
        "m": [order[m] for m in runs["method"]],
        "c": [columns[c] for c in runs["cell"]],
        "values": values,
        "seconds": [rounded(v) for v in runs["seconds"].astype(float)],
        **{
            name: [str(v) for v in runs[name]]
            for name in ("seed", "status", "reason", "command", "origin", "fingerprint", "commit", "started")
        },
    }


def _curves(store: Store, metrics: Sequence[str]) -> dict[str, Any]:
    """For each run the number of its array for each quantity; unfinished runs have none."""
    known = [key for key in map(str, store.metrics) if group_of(key).diagnostic]
    keys = [*(key for key in AXES if key in store.metrics), *metrics, *(key for key in known if key not in metrics)]
    shared = Shared()
    thin = _thinner(len(store.runs))
    table = store.metrics[keys].to_numpy(float)
    by_run = {}
    for run_id, rows in store.metrics.groupby("run_id", sort=False).indices.items():
        columns = table[rows[thin(len(rows))]].T
        by_run[run_id] = {
            key: shared.add(values) for key, values in zip(keys, columns, strict=True) if np.isfinite(values).any()
        }
    done = dict(zip(store.runs["run_id"], store.runs["status"].isin([Status.FINISHED, Status.DIVERGED]), strict=True))
    curves = [by_run.get(run_id, {}) if done[run_id] else {} for run_id in store.runs["run_id"]]
    labels = {key: _metric(key) for key in keys if key not in AXES}
    return {"arrays": shared.arrays, "curves": curves, "labels": labels}


def _thinner(runs: int) -> Callable[[int], np.ndarray]:
    """Positions to keep of a curve of some length: evenly spread, with both ends."""
    most = max(20, min(POINTS, ALL_POINTS // max(1, runs)))
    return lambda length: np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(int))
