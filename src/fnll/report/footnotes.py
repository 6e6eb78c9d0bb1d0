"""What a reader must know to read a table: which number, which protocol, what each method was given."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from fnll.harness.metrics import metric_of
from fnll.report.analysis import Analysis
from fnll.report.cells import show
from fnll.report.identical import twin_notes
from fnll.report.run_warnings import warning_notes
from fnll.report.stats import FEWEST
from fnll.report.store import Store

NOISE = "Label noise: the share of wrong labels, mean over clients and seeds; in brackets the nominal level."


def metric_label(key: str) -> str:
    """A metric in words, with its unit and direction where they are not obvious."""
    metric = metric_of(key)
    return f"{metric.title}{' (%)' if metric.is_fraction else ''}{'' if metric.higher else ', lower is better'}"


def footnotes(analysis: Analysis) -> tuple[str, ...]:
    """The notes below a main table, only those that apply."""
    notes = marks(analysis)
    if analysis.rule.name == "best":
        notes.append("Best on test chooses the evaluation by the test set itself: it is optimistic.")
    return (*notes, *context(analysis))


def marks(analysis: Analysis) -> list[str]:
    """What bold and ≈ mean, where a table has them; and why nothing is bold."""
    cells = analysis.cells[(analysis.cells["kind"] == "method") & analysis.cells["mean"].notna()]
    notes = ["Bold: best mean of the column."] if cells["best"].any() else []
    if cells["tied"].any():
        notes.append(
            "≈: tied with the best, the 95 % t interval of the paired difference contains 0 (needs 3 pairs of the same "
            "scenario and seed)."
        )
    rivals = cells.groupby("cell").filter(lambda group: len(group) > 1 and not group["best"].any())
    if len(rivals):
        what = "Nothing" if len(set(rivals["cell"])) == len(analysis.store.cells) else "Some columns have nothing"
        notes.append(f"{what} in bold: below {FEWEST} seeds no row is called best.")
    return notes


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
    return (*notes, *protocol_notes(analysis.store), *privileges(analysis), *analysis.store.notes)


def caveats(analysis: Analysis) -> tuple[str, ...]:
    """What may spoil a comparison, below every table that shows the runs: rows that are other rows, and warnings."""
    return (*twin_notes(analysis.store, analysis.twins), *warning_notes(analysis.store))


def noise_levels(store: Store) -> list[str]:
    """For every cell the share of wrong labels, mean over clients and seeds; with the nominal level if that differs."""
    told = []
    for cell in store.cell_labels:
        realised, nominal = ("" if np.isnan(level) else f"{level:.2f}" for level in store.levels[cell])
        other = f" (nominal {nominal})" if nominal and nominal != realised else ""
        told.append(f"{realised or 'unknown'}{other}")
    return told


def noise_note(store: Store) -> list[str]:
    """The footnote about levels of noise, where a nominal one is shown."""
    return [NOISE] if any("nominal" in level for level in noise_levels(store)) else []


def protocol_notes(store: Store) -> list[str]:
    """The protocol in force, and local settings in which the rows of one column differ."""
    by_protocol: defaultdict[str, set[str]] = defaultdict(set)
    for method, protocol in store.runs[["method", "protocol"]].drop_duplicates().itertuples(index=False):
        by_protocol[protocol].add(method)
    notes = []
    if set(by_protocol) == {"paper"}:
        notes.append("Protocol: every row has its own paper's settings.")
    elif len(by_protocol) == 1 and (only := next(iter(by_protocol))) != "shared":
        notes.append(f"Protocol of every row: {only}.")
    if len(by_protocol) > 1:
        named = {name: ", ".join(map(store.name, sorted(rows))) for name, rows in sorted(by_protocol.items())}
        notes.append(f"Protocols differ: {'; '.join(f'{name}: {rows}' for name, rows in named.items())}.")
    for key in [column for column in map(str, store.runs) if column.startswith("local.")]:
        values = store.runs[["method", "cell", key]].drop_duplicates()
        if (values.groupby("cell")[key].nunique(dropna=False) > 1).any():
            told = "; ".join(
                f"{store.name(str(method))} {', '.join(sorted({show(v) for v in group[key]}))}"
                for method, group in values.groupby("method")
            )
            notes.append(f"{key} differs between rows: {told}.")
    return notes


def privileges(analysis: Analysis) -> list[str]:
    """What each row uses that FedAvg does not; a row that is another one everywhere used nothing of its own."""
    store = analysis.store
    given: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for method, cell, things in store.runs[["method", "cell", "privileges"]].itertuples(index=False):
        if (method, cell) not in analysis.twins:
            given[method] |= dict.fromkeys(things)
    told = [f"{store.name(method)}: {', '.join(given[method])}" for method in analysis.rows if given[method]]
    return [f"Extra information used: {'; '.join(told)}."] if told else []
