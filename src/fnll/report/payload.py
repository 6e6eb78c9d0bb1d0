"""What the page shows when somebody clicks: texts exactly as the tables print them, and curves.

Everything is finished here. The script chooses and draws; it computes and rounds nothing. A thousand runs make a few
megabytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fnll.harness.metrics import SCORES, metric_of
from fnll.report.analysis import Analysis, analyse
from fnll.report.bands import curves
from fnll.report.figures.lines import AXES
from fnll.report.footnotes import noise_levels
from fnll.report.select import RULES, available_rules
from fnll.report.store import Store
from fnll.report.table import Entry, Table, number
from fnll.report.tables import NOISE_ROW, difference_table, gap_table, main_table

MARKS = ("best", "tied", "twin", "missing")
RANKS = {"best": "best of its column", "tied": "tied with the best ≈"}


def payload(analysis: Analysis, first: str) -> dict[str, Any]:
    """Everything the page needs, as plain JSON values; its curves start at the cell `first`."""
    store = analysis.store
    metrics = [m for m in dict.fromkeys([analysis.metric, *SCORES]) if m in store.metrics]
    rules = available_rules(store)
    analyses = {f"{m}|{r}": analyse(store, m, r, analysis.reference) for m in metrics for r in rules}
    drawn = curves(store, metrics, analysis.rows)
    return {
        "start": {"metric": analysis.metric, "rule": analysis.rule.name, "cell": store.cell_labels.index(first)},
        "metrics": [{"key": m, "label": metric_of(m).words, "higher": metric_of(m).higher} for m in metrics],
        "rules": [{"key": rule, "label": RULES[rule].label} for rule in rules],
        "axes": [{"key": key, "label": label} for key, label in AXES.items() if key in store.metrics],
        "methods": [_method(analysis, method) for method in analysis.rows],
        "cells": _cells(store),
        "views": _view_labels(analysis),
        "grid": {key: _grid(one) for key, one in analyses.items()},
        "runs": _runs(analysis, analyses),
        "quantities": [
            {"key": key, "label": metric_of(key).words, "percent": metric_of(key).is_fraction}
            for key in drawn.pop("quantities")
        ],
        **drawn,
    }


def _method(analysis: Analysis, method: str) -> dict[str, Any]:
    look = analysis.looks[method]
    dash = {"solid": "", "dashed": "6 4", "dotted": "2 3", "dashdot": "7 3 2 3"}[look.dash]
    name, kind = analysis.store.name(method), analysis.store.kind(method)
    return {"name": name, "competes": kind == "method", "colour": look.colour, "dash": dash}


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


def _view_labels(analysis: Analysis) -> list[dict[str, str]]:
    """What a cell may show: the mean, the difference to the reference, the share of the gap."""
    views = [{"key": "mean", "label": "mean ± std over seeds"}]
    if analysis.reference and len(analysis.rows) > 1:
        views.append({"key": "gain", "label": f"difference to {analysis.store.name(analysis.reference)}"})
        if analysis.oracle:
            views.append({"key": "share", "label": "share of the recoverable gap"})
    return views


def _grid(analysis: Analysis) -> dict[str, Any]:
    """Captions and entries of every view, and the facts about every cell; entries are [text, class, to sort by]."""
    keys = [(method, cell) for method in analysis.rows for cell in analysis.store.cell_labels]
    tables = {"mean": (main_table(analysis), _lookup(analysis.cells, "mean"))}
    views = [view["key"] for view in _view_labels(analysis)]
    if "gain" in views:
        tables["gain"] = difference_table(analysis), _lookup(analysis.differences, "difference")
    if "share" in views:
        tables["share"] = gap_table(analysis), _lookup(analysis.recovered, "share")
    shown = {view: _entries(analysis, table) for view, (table, _) in tables.items()}
    unit = " (percentage points)" if metric_of(analysis.metric).is_fraction else ""
    captions = {view: table.title + (unit if view == "gain" else "") for view, (table, _) in tables.items()}
    if analysis.rule.name == "best":
        captions = {view: f"{text} (optimistic: the test set itself chooses)" for view, text in captions.items()}
    return {
        "captions": captions,
        "entries": {
            view: [_triple(shown[view].get(key), analysis, key, _finite(values.get(key))) for key in keys]
            for view, (_, values) in tables.items()
        },
        "facts": _facts(analysis, shown, keys),
    }


def _entries(analysis: Analysis, table: Table) -> dict[tuple[str, str], Entry]:
    """The entries of a table of methods × cells by method and cell."""
    rows = {analysis.store.name(method): method for method in analysis.rows}
    return {
        (rows[row.label], cell): entry
        for row in table.rows
        if row.label != NOISE_ROW
        for cell, entry in zip(analysis.store.cell_labels, row.entries, strict=True)
    }


def _triple(entry: Entry | None, analysis: Analysis, key: tuple[str, str], value: float | None) -> list[Any]:
    if entry is None:  # the table has no such row
        return ["reference" if key[0] == analysis.reference else "–", "missing", None]
    names = [mark for mark in MARKS if getattr(entry, mark)]
    if "diverged" in entry.text:
        names.append("diverged")
    sign = " ≈" if entry.tied else " ≡" if entry.twin else ""
    return [entry.text + sign, " ".join(names), value]


def _facts(
    analysis: Analysis, shown: Mapping[str, Mapping[tuple[str, str], Entry]], keys: Sequence[tuple[str, str]]
) -> list[list[list[str]]]:
    """What the details of a cell begin with: pairs of a name and a text."""
    cells = {(row.method, row.cell): row for row in _records(analysis.cells)}
    label = f"{metric_of(analysis.metric).words}, {analysis.rule.label}"
    store, found = analysis.store, []
    for key in keys:
        row, entry = cells.get(key), shown["mean"][key]
        known = not entry.missing
        facts = [[label, entry.text if known else "–"], ["seeds finished", f"{row.n} of {row.seeds}" if row else "0"]]
        for view, name in (("gain", _gain_name(analysis)), ("share", "share of the recoverable gap")):
            other = shown.get(view, {}).get(key)
            if known and other is not None and not other.missing:
                facts.append([name, other.text])
        if known:
            facts.append(["rank", _rank(entry, analysis, key)])
        if row and row.twin:
            facts.append(["the same run as", f"{store.name(row.twin)}, bit for bit"])
        if row and row.reason:
            facts.append(["without a number", row.reason])
        found.append(facts)
    return found


def _gain_name(analysis: Analysis) -> str:
    return f"difference to {analysis.store.name(analysis.reference or '')}, 95 % interval"


def _rank(entry: Entry, analysis: Analysis, key: tuple[str, str]) -> str:
    if analysis.store.kind(key[0]) != "method":
        return "does not compete"
    cells = analysis.cells
    if not (cells["best"] & (cells["cell"] == key[1])).any():
        return "not told: too few seeds"
    return next((words for mark, words in RANKS.items() if getattr(entry, mark)), "behind the best")


def _records(frame: pd.DataFrame) -> Any:
    return frame.itertuples()


def _lookup(frame: pd.DataFrame, column: str) -> dict[tuple[str, str], float]:
    keys = zip(frame["method"], frame["cell"], strict=True)
    return dict(zip(keys, frame[column].astype(float), strict=True))


def _finite(value: float | None) -> float | None:
    """What is not finite is null, which JSON has."""
    return value if value is not None and math.isfinite(value) else None


def _runs(analysis: Analysis, analyses: Mapping[str, Analysis]) -> dict[str, Any]:
    """The runs column by column, as texts."""
    runs, store = analysis.store.runs, analysis.store
    order = {method: i for i, method in enumerate(analysis.rows)}
    columns = {cell: i for i, cell in enumerate(store.cell_labels)}
    return {
        "id": list(runs["run_id"]),
        "m": [order[m] for m in runs["method"]],
        "c": [columns[c] for c in runs["cell"]],
        "values": {
            key: ["–" if math.isnan(v) else number(v, one.metric) for v in one.scores.frame["value"]]
            for key, one in analyses.items()
        },
        "seconds": ["–" if math.isnan(v) else f"{v:,.1f}" for v in runs["seconds"].astype(float)],
        "started": [when[:16].replace("T", " ") for when in runs["started"]],
        **{
            name: [str(v) for v in runs[name]]
            for name in ("seed", "status", "reason", "command", "fingerprint", "commit")
        },
    }
