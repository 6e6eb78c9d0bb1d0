"""Best and last in one table, two lines per method, as FedNoRo prints them."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from fnll.report.analysis import Analysis, analyse
from fnll.report.footnotes import metric_label
from fnll.report.table import Row, Table
from fnll.report.tables import NOISE_ROW, main_table

RULES = {"best": "best", "last10": "last"}


def best_last_table(analysis: Analysis) -> Table:
    """For each method its best evaluation (chosen on test) and the mean of its last ten."""
    parts = {rule: main_table(analyse(analysis.store, analysis.metric, rule, analysis.reference)) for rule in RULES}
    first = parts["best"]
    rows: list[Row] = []
    for lines in zip(*(part.rows for part in parts.values()), strict=True):
        if lines[0].label != NOISE_ROW:
            rows += [replace(row, label=f"{row.label} · {RULES[rule]}") for rule, row in zip(parts, lines, strict=True)]
    return Table(
        "main_best_last",
        f"{metric_label(analysis.metric)}: best on test, and mean of the last 10 evaluations",
        first.columns,
        tuple(rows),
        ("best: the best evaluation, chosen on test and so optimistic; last: mean of the last 10 evaluations.",),
        pd.concat([part.data for part in parts.values()], ignore_index=True),
    )
