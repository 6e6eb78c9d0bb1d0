"""What a reader must know to read a table: which number, which protocol, what each method was given."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from fnll.harness.metrics import metric_of
from fnll.report.analysis import Analysis
from fnll.report.cells import show
from fnll.report.store import Store

NOISE = (
    "Label noise: mean over clients and seeds of the nominal level, and in brackets of the realised one, the share of "
    "wrong labels."
)


def metric_label(key: str) -> str:
    """A metric in words, with its unit and direction where they are not obvious."""
    metric = metric_of(key)
    return f"{metric.title}{' (%)' if metric.is_fraction else ''}{'' if metric.higher else ', lower is better'}"


def footnotes(analysis: Analysis) -> tuple[str, ...]:
    """The notes below a main table, only those that apply."""
    words = metric_of(analysis.metric).words
    notes = [
        f"Mean ± standard deviation over seeds of each run's {words}: {analysis.rule.label}.",
        "Bold: best mean of the column. ≈: tied with it, the 95 % t interval of the paired difference contains 0 "
        "(needs 3 pairs of the same scenario and seed).",
    ]
    if analysis.rule.name == "best":
        notes.append("Best on test chooses the evaluation by the test set itself: it is optimistic.")
    return (*notes, *context(analysis))


def context(analysis: Analysis) -> tuple[str, ...]:
    """The notes that hold whichever number is shown."""
    cells = analysis.cells
    notes = []
    if (cells["diverged"] > 0).any():
        notes.append("k/n diverged: no mean is shown where a run diverged, and the cell cannot be best or tied.")
    if ((cells["n"] < cells["seeds"]) & (cells["n"] > 0)).any():
        notes.append("(k/n): the mean is over k of the n seeds of the column; the rest has no number.")
    if any(analysis.store.kind(row) != "method" for row in analysis.rows):
        notes.append("Rows set apart know more than methods may (true labels, pooled data) and do not compete.")
    return (*notes, *protocol_notes(analysis.store), *privileges(analysis.store), *analysis.store.notes)


def noise_levels(store: Store) -> list[str]:
    """For every cell, mean over clients and seeds of the nominal noise level, and in brackets of the realised one."""
    told = []
    for cell in store.cell_labels:
        runs = store.runs[(store.runs["cell"] == cell) & (store.runs["kind"] == "method")]
        known = [[v for run in runs[name] for v in run if not np.isnan(v)] for name in ("nominal", "realised")]
        told.append("{} ({})".format(*(f"{np.mean(levels):.3f}" if levels else "–" for levels in known)))
    return told


def protocol_notes(store: Store) -> list[str]:
    """The protocol in force, and local settings in which the rows of one column differ."""
    by_protocol: defaultdict[str, set[str]] = defaultdict(set)
    for method, protocol in store.runs[["method", "protocol"]].drop_duplicates().itertuples(index=False):
        by_protocol[protocol].add(method)
    if len(by_protocol) == 1:
        notes = [f"Protocol: {next(iter(by_protocol))} settings for every row."]
    else:
        told = "; ".join(f"{name}: {', '.join(sorted(rows))}" for name, rows in sorted(by_protocol.items()))
        notes = [f"Protocols differ: {told}."]
    for key in [column for column in map(str, store.runs) if column.startswith("local.")]:
        values = store.runs[["method", "cell", key]].drop_duplicates()
        if (values.groupby("cell")[key].nunique(dropna=False) > 1).any():
            told = "; ".join(
                f"{method} {', '.join(sorted({show(v) for v in group[key]}))}"
                for method, group in values.groupby("method")
            )
            notes.append(f"{key} differs between rows: {told}.")
    return notes


def privileges(store: Store) -> list[str]:
    """What each row uses that FedAvg does not."""
    given: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for method, things in store.runs[["method", "privileges"]].itertuples(index=False):
        given[method] |= dict.fromkeys(things)
    return [f"{method}, beyond FedAvg: {'; '.join(given[method])}." for method in store.methods if given[method]]
