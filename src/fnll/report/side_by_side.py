"""Which figures of several runs a store has the records for: name, caption and figure of each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fnll.harness.status import Status
from fnll.report.analysis import Analysis
from fnll.report.cells import row_labels
from fnll.report.figures.papers import (
    alone_and_inside,
    architectures,
    local_models,
    network_of,
    pairs_with,
    partitions,
    similarities,
    stages,
)
from fnll.report.store import Store

FEWEST_STAGES = 2  # of one method, so that there is a border to draw
MOST_PARTITIONS = 6  # panels of one picture


def side_by_side(analysis: Analysis, cell: str) -> Iterator[tuple[str, str, Figure]]:
    """The figures that lay runs side by side; those of one cell show `cell`."""
    store = analysis.store
    if pairs_with(analysis):
        caption = f"Methods alone and with FedCorr before them: {analysis.rule.label} (compare FedCorr, figure 4)"
        yield "alone_and_with_fedcorr", caption, alone_and_inside(analysis)
    here = _at_any_budget(store, cell)
    if len(here) and (here.groupby("method", observed=True)["stage"].nunique() >= FEWEST_STAGES).any():
        caption = f"Accuracy against client updates with the borders of stages, {cell} (compare FedCorr, figure 9)"
        yield "stages", caption, stages(here, names=store.names)
    one_each = _finished(store).drop_duplicates(["method", "cell"], keep="last")  # networks differ between cells
    networks = {network_of(store, run_id): run_id for run_id in _with_fact(store, one_each, "cumulative_lid")}
    if len(networks) > 1:
        caption = "Cumulative LID by network (compare FedCorr, figure 5)"
        yield "architectures", caption, architectures(store, list(networks.values()))
    runs = _finished(store)
    runs = runs[runs["cell"] == cell].drop_duplicates("method")
    local = [*_with_fact(store, runs, "upload_accuracy"), *_with_fact(store, runs, "local_accuracy")]
    if local:
        caption = f"Accuracy of clients' own models, sorted by label noise, {cell} (compare FedRN, figure 1)"
        yield "local_models", caption, local_models(store, list(dict.fromkeys(local)))
    dealt = _partitions(store)
    if len(dealt) > 1:
        caption = "Samples of every client by true class (compare FedCorr, figures 2 and 10, and FedNoRo, figure 3)"
        yield "partitions", caption, partitions(store, dealt)
    similar = _without_and_with_noise(store)
    if len(similar) > 1:
        caption = "Similarity of clients' outputs without and with label noise (compare FedRN, figure 5)"
        yield "similarities", caption, similarities(store, *similar)


def _finished(store: Store) -> pd.DataFrame:
    return store.runs[store.runs["status"] == Status.FINISHED].sort_values("seed")


def _at_any_budget(store: Store, cell: str) -> pd.DataFrame:
    """The steps of a cell's finished runs, and of rows that it lacks: same clients and network, another budget.

    An ablation without one of the stages is as many rounds shorter, so that it stands in a cell of its own, under the
    name of the whole method.
    """
    runs = _finished(store)
    here = runs[runs["cell"] == cell]
    networks = {network_of(store, run_id) for run_id in here.drop_duplicates("method")["run_id"]}
    others = runs[runs["fingerprint"].isin(set(here["fingerprint"])) & (runs["cell"] != cell)]
    groups = others.groupby(["method", "cell"], observed=True, sort=False)
    others = others[groups["run_id"].transform("first").map(lambda run_id: network_of(store, run_id) in networks)]
    both = pd.concat([here, others])
    keys = [key for key in map(str, both) if key.startswith("method.")]
    settings = [dict(zip(keys, values, strict=True)) for values in both[keys].to_numpy().tolist()]
    names = dict(zip(both["run_id"], row_labels(list(both["choice"]), [()] * len(both), settings), strict=True))
    known = {names[run_id]: cell for run_id in here["run_id"]}
    placed = zip(both["run_id"], both["cell"], strict=True)
    kept = [run_id for run_id, place in placed if known.setdefault(names[run_id], place) == place]
    metrics = store.metrics[store.metrics["run_id"].isin(kept)]
    return metrics if len(kept) == len(here) else metrics.assign(method=metrics["run_id"].astype(str).map(names))


def _partitions(store: Store) -> list[str]:
    """A run of each partition of each data set, of those who recorded what their clients hold."""
    places = _finished(store).groupby(["dataset", "partition"], sort=False)
    found = (next(_with_fact(store, runs, "confusion"), None) for _, runs in places)
    return [run_id for run_id in found if run_id is not None][:MOST_PARTITIONS]


def _with_fact(store: Store, runs: pd.DataFrame, name: str) -> Iterator[str]:
    """Runs that recorded `name`; where one run of a method in a cell did not, its other seeds are not asked."""
    without: set[tuple[str, str]] = set()
    for run_id, method, cell in runs[["run_id", "method", "cell"]].itertuples(index=False):
        if (method, cell) in without:
            continue
        if store.facts(str(run_id), name):
            yield str(run_id)
        else:
            without.add((method, cell))


def _without_and_with_noise(store: Store) -> list[str]:
    """The first run without noise and the first with it that recorded similarities."""
    found: dict[bool, str] = {}
    for run_id in _with_fact(store, _finished(store), "similarity"):
        levels = np.array(store.runs.loc[store.runs["run_id"] == run_id, "realised"].iloc[0], dtype=float)
        found.setdefault(bool(np.nansum(levels) > 0), run_id)
        if len(found) > 1:
            break
    return [found[noisy] for noisy in sorted(found)]
