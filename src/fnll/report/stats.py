"""Statistics inside a cell: means over seeds, paired differences, ties, the recoverable gap, and the cost of a target.

Runs are paired by (origin, seed): the same noisy labels, initial weights, cohorts and batches. An oracle's scenario is
derived from the noisy one and keeps its fingerprint as origin, so it pairs too. What only one side has is left out.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

from fnll.harness.status import Status
from fnll.report.select import Pairs, Scores
from fnll.report.store import Store

CONFIDENCE = 0.95
FEWEST = 3  # pairs below which an interval says nothing worth printing


class Interval(NamedTuple):
    """A mean with its t interval; the bounds are NaN below three values."""

    n: int
    mean: float
    low: float
    high: float

    @property
    def contains_zero(self) -> bool:
        return self.low <= 0 <= self.high  # False for NaN bounds: nothing is claimed


def interval(differences: np.ndarray) -> Interval:
    """Mean of `differences` and its 95 % t interval."""
    n = len(differences)
    if n == 0:
        return Interval(0, np.nan, np.nan, np.nan)
    if n < FEWEST:
        return Interval(n, float(np.mean(differences)), np.nan, np.nan)
    mean, reach = float(np.mean(differences)), _quantile(n) * float(np.std(differences, ddof=1)) / math.sqrt(n)
    return Interval(n, mean, mean - reach, mean + reach)


@lru_cache(maxsize=1024)
def _quantile(n: int) -> float:
    """Student's t for `n` values. Kept, since it takes longer than the rest, and ten thousand runs ask often."""
    return float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))


def cells(scores: Scores) -> pd.DataFrame:
    """One row per (method, cell) that has a run: mean and std (ddof=1) over seeds, counts, marks, run ids.

    `seeds` is how many seeds any method was given in the cell. A cell with a diverged run has no mean. `best` marks the
    best mean among the methods that compete, from three seeds on; `tied` those whose paired interval against the best
    contains 0.
    """
    seeds = scores.frame.groupby("cell")["seed"].nunique().to_dict()
    rows = []
    for (method, cell), group in scores.frame.groupby(["method", "cell"], sort=False):
        values = group["value"].dropna()
        diverged = int((group["status"] == Status.DIVERGED).sum())
        whole = diverged == 0 and len(values) > 0
        rows.append(
            {
                "method": method,
                "cell": cell,
                "kind": group["kind"].iloc[0],
                "n": len(values),
                "seeds": seeds[cell],
                "diverged": diverged,
                "mean": values.mean() if whole else np.nan,
                "std": values.std(ddof=1) if whole else np.nan,
                "reason": reason(group),
                "run_ids": tuple(group["run_id"]),
            }
        )
    return _marked(pd.DataFrame(rows), scores)


def reason(group: pd.DataFrame) -> str:
    """Why runs of one cell have no number: `2 failed: out of memory; 1 unfinished: at evaluation 3 of 60 rounds`."""
    if (group["status"] == Status.FINISHED).all() and group["value"].notna().all():
        return ""
    lost = group[group["status"] != Status.FINISHED]
    told = [
        f"{len(runs)} {status}: {runs['reason'].iloc[0]}" if runs["reason"].iloc[0] else f"{len(runs)} {status}"
        for status, runs in lost.groupby("status", observed=True)
    ]
    silent = int((group["value"].isna() & (group["status"] == Status.FINISHED)).sum())
    return "; ".join([*told, *([f"{silent} did not record it"] if silent else [])])


def _marked(table: pd.DataFrame, scores: Scores) -> pd.DataFrame:
    table["best"], table["tied"] = False, False
    competing = table[(table["kind"] == "method") & table["mean"].notna()]
    for cell, group in competing.groupby("cell", sort=False):
        best = group["mean"] == scores.best_of(group["mean"])
        table.loc[group.index, "best"] = best & (group["n"] >= FEWEST)
        winner, pairs = str(group.loc[best, "method"].iloc[0]), scores.cells[str(cell)]
        table.loc[group.index, "tied"] = [
            not won and paired(pairs, str(method), winner).contains_zero
            for won, method in zip(best, group["method"], strict=True)
        ]
    return table


def paired(pairs: Pairs, method: str, other: str) -> Interval:
    """`method` minus `other` over the (origin, seed) that both have in one cell; empty if either diverged there."""
    if {method, other} & pairs.diverged or not {method, other} <= set(pairs.values):
        return interval(np.array([]))
    differences = pairs.values[method].to_numpy() - pairs.values[other].to_numpy()
    return interval(differences[~np.isnan(differences)])


def differences(scores: Scores, reference: str) -> pd.DataFrame:
    """Every method minus `reference`, cell by cell: method, cell, pairs, difference, low, high."""
    rows = [
        (method, cell, *paired(pairs, method, reference))
        for cell, pairs in scores.cells.items()
        for method in map(str, pairs.values)
        if method != reference
    ]
    return pd.DataFrame(rows, columns=["method", "cell", "pairs", "difference", "low", "high"])


def recovered(scores: Scores, reference: str, oracle: str = "oracle") -> pd.DataFrame:
    """Share of the recoverable gap, (method − reference) / (oracle − reference): method, cell, pairs, share.

    Both differences are means over the (origin, seed) that all three have. NaN where there is no gap to recover: the
    oracle is not ahead, or its lead's interval contains 0.
    """
    methods = set(scores.frame.loc[scores.frame["kind"] == "method", "method"]) - {reference}
    rows = []
    for cell, pairs in scores.cells.items():
        for method in sorted(methods & set(pairs.values)):
            trio = [method, reference, oracle]
            if not set(trio) <= set(pairs.values) or pairs.diverged & set(trio):
                continue
            mine, base, top = pairs.values[trio].dropna().to_numpy().T
            rows.append((method, cell, len(base), _share(mine - base, top - base, 1 if scores.higher else -1)))
    return pd.DataFrame(rows, columns=["method", "cell", "pairs", "share"])


def _share(gain: np.ndarray, gap: np.ndarray, sign: int) -> float:
    lead = interval(sign * gap)
    if not lead.n or lead.mean <= 0 or lead.contains_zero:
        return float("nan")
    return float(sign * np.mean(gain) / lead.mean)


def target_cost(store: Store, target: float, metric: str = "test/accuracy") -> pd.DataFrame:
    """Client updates at the first evaluation with `metric` ≥ `target` (FedCorr's targeted communication cost ζ).

    One row per (method, cell): n finished runs, how many reached the target, mean and std over them if all did, and the
    ratio to the cheapest method of the cell. With a run that never reaches it, or that diverged, there is no mean.
    """
    steps = store.metrics[(store.metrics["status"] == Status.FINISHED) & (store.metrics[metric] >= target)]
    first = steps.groupby("run_id")["comm/client_updates"].first()
    runs = store.runs.assign(cost=store.runs["run_id"].map(first))
    rows = []
    for (method, cell), group in runs.groupby(["method", "cell"], sort=False):
        finished = group[group["status"] == Status.FINISHED]
        diverged = int((group["status"] == Status.DIVERGED).sum())
        reached = int(finished["cost"].notna().sum())
        whole = reached == len(finished) > 0 and not diverged
        mean, std = (finished["cost"].mean(), finished["cost"].std(ddof=1)) if whole else (np.nan, np.nan)
        rows.append((method, cell, group["kind"].iloc[0], len(finished), reached, diverged, mean, std))
    columns = ["method", "cell", "kind", "n", "reached", "diverged", "mean", "std"]
    table = pd.DataFrame(rows, columns=columns)
    cheapest = table[table["kind"] == "method"].groupby("cell")["mean"].min()
    return table.assign(ratio=table["mean"] / table["cell"].map(cheapest))
