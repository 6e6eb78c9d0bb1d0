"""The other tables: what the columns are, what is missing, what was spent, how methods rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fnll.harness.metrics import Unit, metric_of, recorded
from fnll.harness.status import Status
from fnll.report.analysis import Analysis
from fnll.report.blocks import smallest_p
from fnll.report.common import caption
from fnll.report.footnotes import caveats, metric_label, noise_levels, noise_note
from fnll.report.run_warnings import warning_notes
from fnll.report.store import Store
from fnll.report.table import Entry, Row, Table, listing, number, texts


def scenario_table(store: Store) -> Table:
    """What every column is: data, partition, noise, and the noise that came out."""
    rows = []
    for cell, noise in zip(store.cells, noise_levels(store), strict=True):
        runs = store.runs[store.runs["cell"] == cell.label]
        prints = sorted(set(runs["origin"]) - {""})
        words = (cell.dataset, cell.partition, cell.noise, cell.other or "–", noise, str(runs["seed"].nunique()))
        rows.append(Row(cell.label, (*map(Entry, words), Entry(_several(prints), hint=" ".join(prints)))))
    columns = ("scenario", "data", "partition", "noise", "other", "label noise", "seeds", "fingerprints")
    return listing("scenarios", "Scenarios", columns, rows, *noise_note(store))


def missing_table(store: Store) -> Table:
    """Every run without a number, and why."""
    rows = []
    for cell in store.cell_labels:
        here = store.runs[store.runs["cell"] == cell]
        for method in store.methods:
            runs = here[here["method"] == method]
            absent = [str(seed) for seed in sorted(set(here["seed"]) - set(runs["seed"]))]
            if absent:
                rows.append(texts(store.name(method), cell, ", ".join(absent), "not run", "–", "–"))
            rows += [
                texts(
                    store.name(method),
                    cell,
                    str(run.seed),
                    str(run.status),
                    str(run.reason),
                    str(run.command) or str(run.run_id),
                )
                for run in runs[runs["status"] != Status.FINISHED].itertuples()
            ]
    columns = ("method", "scenario", "seeds", "status", "reason", "run, or command to repeat it")
    return listing("missing", "Runs without a number", columns, rows)


def resource_table(analysis: Analysis) -> Table:
    """What the methods spent, over all their finished runs."""
    store = analysis.store
    finished = store.metrics[store.metrics["status"] == Status.FINISHED]
    keys = [key for key in recorded("comm") if key in finished]
    totals = finished.groupby(["method", "run_id"], observed=True)[keys].max().groupby("method", observed=True).mean()
    totals["seconds"] = store.runs[store.runs["status"] == Status.FINISHED].groupby("method")["seconds"].mean()
    spent = totals.to_dict("index")
    rows = [
        texts(
            store.name(method),
            *(_amount(str(k), v) for k, v in spent[method].items()),
            apart=store.kind(method) != "method",
        )
        for method in analysis.rows
        if method in spent
    ]
    columns = ("method", *(metric_of(key).heading for key in keys), "seconds")
    note = "Means over the finished runs of all scenarios. Seconds depend on the machine and on what else it was doing."
    table = Table("resources", "What the methods spent", columns, tuple(rows), (note,), totals.reset_index())
    return replace(table, caption=caption(store), caveats=caveats(analysis))


def detection_table(store: Store) -> Table:
    """Recall, precision and exact matches of noisy-client detection, as in FedNoRo's table 3."""
    keys = [key for key in recorded("detect") if key in store.metrics]
    steps = store.metrics[(store.metrics["status"] == Status.FINISHED) & store.metrics[keys].notna().any(axis=1)]
    last = steps.groupby(["method", "cell", "run_id"], observed=True)[keys].last()
    by_cell = last.groupby(["method", "cell"], observed=True)
    means, counts = by_cell.mean().to_dict("index"), by_cell.size().to_dict()
    rows = [
        texts(
            store.name(method), cell, *(_percent(means[method, cell][key]) for key in keys), str(counts[method, cell])
        )
        for method in store.methods
        for cell in store.cell_labels
        if (method, cell) in means
    ]
    note = (
        "Last detection of each run against the clients that hold a wrong label, mean over runs. MR, the matching "
        "ratio: share of runs whose set of noisy clients is exactly right."
    )
    columns = ("method", "scenario", *(metric_of(key).heading for key in keys), "runs")
    table = listing("detection", "Detection of noisy clients", columns, rows, note)
    return replace(table, caption=caption(store), caveats=tuple(warning_notes(store)))


def rank_table(analysis: Analysis) -> Table:
    """Average ranks and the signed-rank test against the reference, over scenarios as blocks."""
    ranking, tests, store = analysis.ranking, analysis.against_reference, analysis.store
    assert ranking is not None  # the caller asks only for stores that have one
    by_method = tests.set_index("method").to_dict("index")
    rows = []
    for method, rank in ranking.ranks.items():
        test = by_method.get(method, {"median": np.nan, "n": 0, "p": np.nan, "p_holm": np.nan})
        shown = (_gain(test["median"], analysis), str(test["n"] or "–"), _p(test["p"]), _p(test["p_holm"]))
        rows.append(texts(store.name(str(method)), f"{rank:.2f}", *shown))
    gain = f"median gain over {store.name(analysis.reference) if analysis.reference else 'the reference'}"
    columns = ("method", "average rank", gain, "scenarios", "Wilcoxon p", "p, Holm-corrected")
    comparisons = int(tests["p"].notna().sum())
    notes = [
        f"{metric_label(analysis.metric)}, {analysis.rule.label}. Ranks: {len(ranking.blocks)} scenarios that all "
        "ranked methods have, as blocks; 1 is best; a cell with a diverged run ranks last."
    ]
    if not np.isnan(ranking.friedman):
        notes.append(f"Friedman test that all methods are alike: p {_compared(ranking.friedman)}.")
    if comparisons:
        most = int(tests["n"].max())
        notes.append(
            f"Two-sided signed-rank tests over the scenarios shared with {store.name(analysis.reference or '')}. "
            f"With {most} of them and "
            f"{comparisons} comparisons the smallest possible corrected p is {smallest_p(most, comparisons):.3g}."
        )
    if ranking.left_out:
        notes.append(f"Left out, since they miss too many scenarios: {', '.join(map(store.name, ranking.left_out))}.")
    table = Table("ranks", "Ranks over scenarios", columns, tuple(rows), tuple(notes), tests)
    return replace(table, caption=caption(store), caveats=caveats(analysis))


def method_table(analysis: Analysis) -> Table:
    """Who the rows are: their paper, what they are given, the protocol they ran under."""
    rows = []
    for method in analysis.rows:
        runs = analysis.store.runs[analysis.store.runs["method"] == method]
        given = dict.fromkeys(thing for things in runs["privileges"] for thing in things)
        papers = sorted(set(runs["paper"]) - {""})
        words = ("; ".join(papers) or "–", "; ".join(given) or "–", ", ".join(sorted(set(runs["protocol"]))))
        name = analysis.store.name(method)
        rows.append(texts(name, *words, str(len(runs)), apart=analysis.store.kind(method) != "method"))
    return listing("methods", "Methods", ("method", "paper", "extra information used", "protocol", "runs"), rows)


def _gain(median: float, analysis: Analysis) -> str:
    """Positive where the method is better, whichever way the metric points."""
    if np.isinf(median):
        return "diverged" if median < 0 else f"{analysis.store.name(analysis.reference or '')} diverged"
    if np.isnan(median):
        return "–"
    return ("+" if median > 0 else "") + number(median, analysis.metric).replace("-", "−")


def _p(p: float) -> str:
    return "–" if np.isnan(p) else _compared(p).removeprefix("= ")


def _compared(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.2f}"


def _amount(key: str, value: float) -> str:
    if np.isnan(value):
        return "–"
    return f"{value / 1e6:,.1f}" if metric_of(key).unit is Unit.BYTES else f"{value:,.0f}"


def _several(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"
