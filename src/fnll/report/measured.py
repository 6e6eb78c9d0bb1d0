"""The number that a published record speaks of, taken from our runs: one function per way of measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import pearsonr

from fnll.harness.status import Status
from fnll.published import Record
from fnll.report.mixtures import mixture_rates
from fnll.report.select import RULES, available_metrics, available_rules, scores
from fnll.report.store import Store

DETECTION = {"detect/recall": "recall", "detect/precision": "precision", "detect/exact": "matching"}


def values_of(store: Store, record: Record, run_ids: Sequence[str]) -> dict[str, float]:
    """Our numbers for a record, by run and in its unit; runs that did not record what it takes are left out."""
    measure = MEASURES.get(record.select, _selected)
    scale = 100.0 if record.unit == "%" else 1.0
    return {run_id: scale * value for run_id, value in measure(store, record, run_ids).items()}


def _selected(store: Store, record: Record, run_ids: Sequence[str]) -> dict[str, float]:
    """By a rule of the report: best, last or last10."""
    if record.select not in RULES or record.select not in available_rules(store):
        return {}
    if record.metric not in available_metrics(store):
        return {}
    picked = scores(store, record.metric, record.select).frame.set_index("run_id")["value"].dropna()
    return {run_id: float(picked[run_id]) for run_id in run_ids if run_id in picked.index}


def _cost(store: Store, record: Record, run_ids: Sequence[str]) -> dict[str, float]:
    """Client updates at the first evaluation that reaches the target; NaN for a run that never does."""
    steps = store.metrics[(store.metrics["status"] == Status.FINISHED) & store.metrics["run_id"].isin(run_ids)]
    first = steps[steps["test/accuracy"] >= record.target].groupby("run_id")["comm/client_updates"].first()
    return {run_id: float(first.get(run_id, np.nan)) for run_id in run_ids}


def _mixtures(store: Store, record: Record, run_ids: Sequence[str]) -> dict[str, float]:
    """Recall, precision and exact matches over many mixtures of the run's last indicator."""
    paths = store.runs.set_index("run_id")["path"]
    rates = {run_id: mixture_rates(Path(str(paths[run_id]))) for run_id in run_ids}
    return {run_id: float(getattr(r, DETECTION[record.metric])) for run_id, r in rates.items() if r is not None}


def _correlation(store: Store, record: Record, run_ids: Sequence[str]) -> dict[str, float]:
    """Of clients' training accuracy with their share of wrong labels."""
    found = {}
    for run_id in run_ids:
        realised = np.array(store.runs.set_index("run_id")["realised"][run_id], dtype=float)
        facts = store.facts(run_id, "accuracy")
        if facts and len(realised):
            pairs = [(realised[int(k)], a) for k, a in facts[-1]["value"].items() if a is not None]
            known = np.array([pair for pair in pairs if not np.isnan(pair[0])])
            if len(known) > 1 and np.ptp(known[:, 0]) > 0:
                found[run_id] = float(pearsonr(known[:, 0], known[:, 1]).statistic)
    return found


def _nothing(store: Store, record: Record, run_ids: Sequence[str]) -> dict[str, float]:
    """Passes are counted by `fnll bench --suite passes`, not by runs."""
    return {}


MEASURES: dict[str, Callable[[Store, Record, Sequence[str]], dict[str, float]]] = {
    "target": _cost,
    "mixtures": _mixtures,
    "correlation": _correlation,
    "cost": _nothing,
}
