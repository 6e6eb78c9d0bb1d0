"""Which figures of several runs a store has the records for: name, caption and figure of each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fnll.harness.status import Status
from fnll.report.analysis import Analysis
from fnll.report.figures.papers import (
    alone_and_inside,
    architectures,
    local_models,
    network_of,
    pairs_with,
    similarities,
    stages,
)
from fnll.report.store import Store

FEWEST_STAGES = 2  # of one method, so that there is a border to draw


def side_by_side(analysis: Analysis, cell: str) -> Iterator[tuple[str, str, Figure]]:
    """The figures that lay runs side by side; those of one cell show `cell`."""
    store = analysis.store
    if pairs_with(analysis):
        caption = f"Methods alone and with FedCorr before them: {analysis.rule.label} (compare FedCorr, figure 4)"
        yield "alone_and_with_fedcorr", caption, alone_and_inside(analysis)
    here = store.metrics[(store.metrics["cell"] == cell) & (store.metrics["status"] == Status.FINISHED)]
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
    similar = _without_and_with_noise(store)
    if len(similar) > 1:
        caption = "Similarity of clients' outputs without and with label noise (compare FedRN, figure 5)"
        yield "similarities", caption, similarities(store, *similar)


def _finished(store: Store) -> pd.DataFrame:
    return store.runs[store.runs["status"] == Status.FINISHED].sort_values("seed")


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
