"""From a directory of finished runs to tidy frames, tables, statistics, figures and one HTML page.

    from fnll.report import analyse, load, main_table, to_markdown

    store = load("runs")  # store.runs, store.metrics: tidy pandas frames
    analysis = analyse(store, "test/accuracy", "last10", reference="fedavg")
    print(to_markdown(main_table(analysis)))

Figures are in `fnll.report.figures`; `write` makes the whole report.
"""

from fnll.report.analysis import Analysis, analyse
from fnll.report.blocks import Ranking, against, rank
from fnll.report.cells import Cell
from fnll.report.document import Report, all_tables, write
from fnll.report.latex import latex_document, to_latex
from fnll.report.listings import (
    detection_table,
    method_table,
    missing_table,
    rank_table,
    resource_table,
    scenario_table,
)
from fnll.report.render import to_csv, to_html, to_markdown, to_rich
from fnll.report.select import RULES, Rule, Scores, available_metrics, available_rules, scores
from fnll.report.stats import Interval, cells, differences, interval, recovered, target_cost
from fnll.report.store import Store, load
from fnll.report.table import Entry, Row, Table
from fnll.report.tables import cost_table, difference_table, gap_table, main_table

__all__ = [
    "RULES",
    "Analysis",
    "Cell",
    "Entry",
    "Interval",
    "Ranking",
    "Report",
    "Row",
    "Rule",
    "Scores",
    "Store",
    "Table",
    "against",
    "all_tables",
    "analyse",
    "available_metrics",
    "available_rules",
    "cells",
    "cost_table",
    "detection_table",
    "difference_table",
    "differences",
    "gap_table",
    "interval",
    "latex_document",
    "load",
    "main_table",
    "method_table",
    "missing_table",
    "rank",
    "rank_table",
    "recovered",
    "resource_table",
    "scenario_table",
    "scores",
    "target_cost",
    "to_csv",
    "to_html",
    "to_latex",
    "to_markdown",
    "to_rich",
    "write",
]
