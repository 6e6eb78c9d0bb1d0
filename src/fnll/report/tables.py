"""The comparison tables, methods × cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fnll.harness.metrics import metric_of
from fnll.report.analysis import Analysis
from fnll.report.common import caption
from fnll.report.footnotes import caveats, footnotes, metric_label, noise_levels, noise_note
from fnll.report.stats import FEWEST, target_cost
from fnll.report.table import Entry, Row, Table, number, signed, spread

NOISE_ROW = "label noise"


def main_table(analysis: Analysis) -> Table:
    """Mean ± std over seeds, methods × cells."""
    cells = analysis.cells
    rows = _grid(analysis.rows, analysis, cells, lambda row: _mean(row, analysis.metric))
    noise = Row(NOISE_ROW, tuple(map(Entry, noise_levels(analysis.store))), apart=True)
    return _dressed(
        analysis,
        f"main_{analysis.rule.name}",
        f"{metric_label(analysis.metric)}, {analysis.rule.label}",
        (noise, *rows),
        (*footnotes(analysis), *noise_note(analysis.store)),
        cells.assign(metric=analysis.metric, select=analysis.rule.name, run_ids=cells["run_ids"].map(" ".join)),
    )


def _dressed(
    analysis: Analysis, name: str, title: str, rows: Sequence[Row], notes: Sequence[str], data: pd.DataFrame
) -> Table:
    """A table of methods × cells with what was compared and what may spoil it."""
    store = analysis.store
    columns = ("method", *store.cell_labels)
    return Table(
        name, title, columns, tuple(rows), tuple(notes), data, caption=caption(store), caveats=caveats(analysis)
    )


def difference_table(analysis: Analysis) -> Table:
    """Paired differences to the reference with their intervals."""
    scale = 100 if metric_of(analysis.metric).is_fraction else 1
    others = [row for row in analysis.rows if row != analysis.reference]
    rows = _grid(others, analysis, analysis.differences, lambda row: _difference(row, scale))
    base = analysis.store.name(analysis.reference or "")
    return _dressed(
        analysis,
        "difference",
        f"Difference to {base}: {metric_label(analysis.metric)}, {analysis.rule.label}",
        rows,
        (
            "Mean of the differences paired by (scenario, seed) with its 95 % t interval; below 3 pairs no interval.",
            *(["Differences are in percentage points."] if scale == 100 else []),
        ),
        analysis.differences,
    )


def gap_table(analysis: Analysis) -> Table:
    """Share of the recoverable gap."""
    base, top = (analysis.store.name(row or "") for row in (analysis.reference, analysis.oracle))
    others = [row for row in analysis.competing if row != analysis.reference]
    rows = _grid(others, analysis, analysis.recovered, _share)
    said = {entry.text for row in rows for entry in row.entries}
    notes = [f"(method − {base}) / ({top} − {base}), over the seeds all three have."]
    if "no gap" in said:
        notes.append(f"“no gap”: {top} is not ahead of {base}, or not clearly (its 95 % interval contains 0).")
    if any("(n=" in text for text in said):
        notes.append(f"(n=k): below {FEWEST} seeds nobody can tell, and a small gap makes absurd shares.")
    return _dressed(
        analysis,
        "recovered",
        f"Share of the recoverable gap: {metric_label(analysis.metric)}, {analysis.rule.label}",
        rows,
        notes,
        analysis.recovered,
    )


def cost_table(analysis: Analysis, target: float) -> Table:
    """FedCorr's targeted communication cost."""
    costs = target_cost(analysis.store, target)
    rows = _grid(analysis.rows, analysis, costs, _cost)
    said = {entry.text for row in rows for entry in row.entries}
    never = " “–”: no run reached it." if "–" in said else ""
    partly = " “k/n”: only k of n did." if any(re.fullmatch(r"\d+/\d+", text) for text in said) else ""
    return _dressed(
        analysis,
        f"cost_{100 * target:g}",
        f"Client updates until {100 * target:g} % test accuracy",
        rows,
        (
            f"Client updates at the first evaluation with test accuracy ≥ ζ = {100 * target:g} %, mean over seeds; in "
            f"brackets the ratio to the cheapest method of the column.{never}{partly}",
        ),
        costs,
    )


def _grid(
    methods: Sequence[str], analysis: Analysis, data: pd.DataFrame, entry: Callable[[Any], Entry | None]
) -> list[Row]:
    """Rows × cells; a pair that `data` does not have says why: nothing ran, or nothing finished."""
    known = {(row.method, row.cell): entry(row) for row in data.itertuples()}
    why = {(row.method, row.cell): _absent(row) for row in analysis.cells.itertuples()}
    return [
        Row(
            analysis.store.name(method),
            tuple(
                known.get((method, cell)) or why.get((method, cell)) or Entry("not run", missing=True, hint="not run")
                for cell in analysis.store.cell_labels
            ),
            apart=analysis.store.kind(method) != "method",
        )
        for method in methods
    ]


def _absent(row: Any) -> Entry:
    """The word for a cell without a number of its own."""
    if not np.isnan(row.mean):
        return Entry(
            "–", missing=True, hint="no run to pair it with: the same scenario and seed, neither side diverged"
        )
    if row.diverged:
        return Entry(f"{row.diverged}/{row.seeds} diverged", missing=True, hint=row.reason)
    first = row.reason.split(":")[0].split(";")[0]  # "5 failed"
    word = "not recorded" if "did not record" in first else first.split(" ", 1)[-1]
    return Entry(word or "–", missing=True, hint=row.reason)


def _mean(row: Any, metric: str) -> Entry:
    if np.isnan(row.mean):
        return _absent(row)
    short = f" ({row.n}/{row.seeds})" if row.n < row.seeds else ""
    text = f"{number(row.mean, metric)}{spread(row.std, metric)}{short}"
    hint = "; ".join(filter(None, [row.reason, *row.run_ids]))
    return Entry(text, best=row.best, tied=row.tied, twin=bool(row.twin), hint=hint)


def _difference(row: Any, scale: int) -> Entry | None:
    if not row.pairs:
        return None
    digits = 2 if scale == 100 else 4
    text = signed(scale * row.difference, digits)
    if np.isnan(row.low):
        return Entry(f"{text} (n={row.pairs})", hint="below 3 pairs there is no interval")
    bounds = f" [{signed(scale * row.low, digits)}, {signed(scale * row.high, digits)}]"
    return Entry(text + bounds, hint=f"{row.pairs} pairs")


def _share(row: Any) -> Entry | None:
    if not row.pairs:
        return None
    if np.isnan(row.share):
        return Entry("no gap", missing=True)
    text = f"{100 * row.share:.0f} %".replace("-", "−")
    if row.pairs < FEWEST:
        return Entry(f"{text} (n={row.pairs})", hint=f"below {FEWEST} seeds nobody can tell whether there is a gap")
    return Entry(text)


def _cost(row: Any) -> Entry | None:
    if not row.n:
        return None
    if row.diverged:
        return Entry(f"{row.diverged} diverged", missing=True)
    if not row.reached:
        return Entry("–", missing=True, hint=f"none of {row.n} runs reached it")
    if row.reached < row.n:
        return Entry(f"{row.reached}/{row.n}", missing=True, hint="runs that reached it")
    ratio = "" if np.isnan(row.ratio) else f" ({row.ratio:.1f}×)"
    best = row.ratio == 1 and row.kind == "method" and row.n >= FEWEST
    return Entry(f"{row.mean:.0f}{ratio}", best=best)
