"""What a reader must know to read a table: which number, which protocol, what each method was given."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from fnll.report.analysis import Analysis
from fnll.report.grid import show
from fnll.report.select import higher_is_better, is_fraction
from fnll.report.store import Store

NOISE = "Label noise: mean over clients and seeds of the level asked for, and in brackets of the share of wrong labels."
METRICS = {
    "test/accuracy": "test accuracy",
    "test/balanced_accuracy": "balanced test accuracy",
    "test/loss": "test loss",
    "val/accuracy": "accuracy on held-out noisy labels",
    "select/precision": "label precision of the samples trained on",
    "select/recall": "label recall of the samples trained on",
    "labels/noise": "share of wrong labels",
    "labels/fixed": "labels fixed",
    "labels/broken": "labels broken",
    "labels/left": "wrong labels left",
    "detect/recall": "recall of noisy clients",
    "detect/precision": "precision of noisy clients",
    "detect/f1": "F1 of noisy clients",
    "detect/exact": "noisy clients exactly right",
    "levels/error": "error of estimated noise levels",
    "levels/error_after": "error of noise levels after correction",
    "memory/wrong": "wrong labels memorised",
    "memory/true": "mislabelled but predicted right",
}


def metric_name(metric: str) -> str:
    """A metric in words."""
    return METRICS.get(metric, metric)


def metric_label(metric: str) -> str:
    """A metric in words, with its unit and direction where they are not obvious."""
    name = metric_name(metric)
    unit = " (%)" if is_fraction(metric) else ""
    return f"{name[0].upper()}{name[1:]}{unit}{'' if higher_is_better(metric) else ', lower is better'}"


def footnotes(analysis: Analysis) -> tuple[str, ...]:
    """The notes below a main table, only those that apply."""
    notes = [
        f"Mean ± standard deviation over seeds of each run's {metric_name(analysis.metric)}: {analysis.rule.label}.",
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
    """What each row is given beyond FedAvg."""
    given: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for method, things in store.runs[["method", "privileges"]].itertuples(index=False):
        given[method] |= dict.fromkeys(things)
    return [f"{method}, beyond FedAvg: {'; '.join(given[method])}." for method in store.methods if given[method]]
