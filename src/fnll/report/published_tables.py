"""Comparisons with published numbers as tables: the paper's own layout with ours in it, and a list of the cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from fnll.published import Record, table
from fnll.report.published import Beside, Comparison
from fnll.report.table import Entry, Row, Table, signed


def published_tables(found: Sequence[Comparison]) -> list[Table]:
    """For each comparison the paper's own table with ours in it, and the list of what can be compared."""
    return [made for comparison in found for made in (as_printed(comparison), as_list(comparison))]


def as_printed(comparison: Comparison) -> Table:
    """Rows and columns of the paper: ours, and in brackets what is printed."""
    printed = comparison.printed
    rules = list(dict.fromkeys(record.select for record in printed.records))
    place = {(r.row, r.column, r.select): r for r in printed.records}
    rows = []
    for row in printed.rows:
        for rule in rules:
            records = [place.get((row, column, rule)) for column in printed.columns]
            methods = dict.fromkeys(c.method for r in records if r for c in comparison.of(r)) or {"": None}
            for method in methods:
                label = " · ".join(filter(None, [row, rule if len(rules) > 1 else "", _unless(method, row)]))
                rows.append(Row(label, tuple(_both(comparison, record, method) for record in records)))
    return Table(
        f"published_{printed.name}",
        f"{_place(printed.name)}, ours (published): {printed.title}",
        ("", *printed.columns),
        tuple(rows),
        (*_order(comparison), "–: not run here, or not printed."),
        frame(comparison),
    )


def as_list(comparison: Comparison) -> Table:
    """One line per cell: ours, theirs, the difference, whether it is within the spreads, and known reasons."""
    rows = []
    for cell in comparison.cells:
        record = cell.record
        words = (
            record.column,
            _number(cell.mean, cell.std, record.unit) + f" (n={len(cell.values)})",
            _printed(record),
            "–" if np.isnan(cell.difference) else signed(cell.difference),
            {True: "yes", False: "no", None: "–"}[cell.within],
            "; ".join(cell.reasons) or "–",
        )
        suffix = f" · {record.select}" if len({r.select for r in comparison.printed.records}) > 1 else ""
        rows.append(
            Row(f"{record.row}{suffix}{_bracketed(_unless(cell.method, record.row))}", tuple(map(Entry, words)))
        )
    return Table(
        f"published_{comparison.printed.name}_cells",
        f"{_place(comparison.printed.name)} cell by cell, in {comparison.printed.records[0].unit}",
        ("row", "column", "ours", "published", "difference", "within the spreads", "known reasons"),
        tuple(rows),
        (
            "Within the spreads: the difference is at most the sum of the standard deviations that are known, ours "
            "over seeds and the printed one; – where neither is known.",
            "Reasons: settings of ours with the paper's in brackets, errata, and choices the paper does not tell.",
        ),
        frame(comparison),
        words=True,
    )


def frame(comparison: Comparison) -> pd.DataFrame:
    """The comparison in tidy form."""
    rows = [
        {
            "table": cell.record.table,
            "row": cell.record.row,
            "column": cell.record.column,
            "method": cell.method,
            "metric": cell.record.metric,
            "select": cell.record.select,
            "unit": cell.record.unit,
            "ours": cell.mean,
            "ours_std": cell.std,
            "n": len(cell.values),
            "published": cell.record.value,
            "published_spread": cell.record.spread,
            "trials": cell.record.trials,
            "difference": cell.difference,
            "within": cell.within,
            "reasons": "; ".join(cell.reasons),
            "run_ids": " ".join(cell.run_ids),
        }
        for cell in comparison.cells
    ]
    return pd.DataFrame(rows)


def ordered(comparison: Comparison) -> tuple[int, int]:
    """Pairs of rows in one column: how many ours orders as printed, and how many there are."""
    by_column: defaultdict[tuple[str, str, str], list[Beside]] = defaultdict(list)
    for cell in comparison.cells:
        if cell.record.value is not None and not np.isnan(cell.mean) and not cell.record.mean_of_row:
            by_column[cell.record.column, cell.record.metric, cell.record.select].append(cell)
    pairs = [
        (one.mean - other.mean) * ((one.record.value or 0.0) - (other.record.value or 0.0))
        for cells in by_column.values()
        for one, other in combinations(cells, 2)
        if one.record.value != other.record.value
    ]
    return sum(pair > 0 for pair in pairs), len(pairs)


def _order(comparison: Comparison) -> list[str]:
    alike, pairs = ordered(comparison)
    if not pairs:
        return []
    return [f"Of {pairs} pairs of rows in one column, ours orders {alike} as printed ({100 * alike / pairs:.0f} %)."]


def _both(comparison: Comparison, record: Record | None, method: str) -> Entry:
    if record is None:
        return Entry("–", missing=True)
    mine = [cell for cell in comparison.of(record) if cell.method == method]
    theirs = "" if (printed := _printed(record)) == "–" else f" ({printed})"
    if not mine:
        return Entry(f"–{theirs}", missing=True, hint="not run here")
    return Entry(f"{_number(mine[0].mean, mine[0].std, record.unit)}{theirs}", hint="; ".join(mine[0].reasons))


def _printed(record: Record) -> str:
    if record.formula:
        return record.formula
    return "–" if record.value is None else _number(record.value, record.spread, record.unit)


def _number(value: float, spread: float | None, unit: str) -> str:
    if np.isnan(value):
        return "not reached" if unit == "client updates" else "–"
    digits = 0 if unit == "client updates" else 2
    beside = "" if spread is None or np.isnan(spread) else f" ± {spread:.{digits}f}"
    return f"{value:.{digits}f}".replace("-", "−") + beside


def _place(name: str) -> str:
    """`fedcorr_table2` as a reader says it."""
    rest = name.partition("_")[2]
    kind = "table" if rest.startswith("table") else "figure"
    return f"{table(name).paper}, {kind} {rest.removeprefix('table').removeprefix('fig')}"


def _unless(method: str, row: str) -> str:
    """Our row's name where it says more than the printed one."""
    return "" if method.lower() == row.lower() else method


def _bracketed(text: str) -> str:
    return f" ({text})" if text else ""
