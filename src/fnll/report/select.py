"""Which number of a run goes into a table: named rules, so that no table can leave it open.

`best` looks at the test set to choose its step. It is what several papers print, it is optimistic, and it is called
"best on test" wherever it appears.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fnll.errors import UserError, nearest
from fnll.harness.metrics import LAST, SCORES, best, group_of, last, last10, metric_of
from fnll.harness.status import Status
from fnll.report.store import Store

VALIDATION = "val/accuracy"

Pick = Callable[[pd.DataFrame, str, int], float]  # the steps of one run in order, the metric, its rounds → its number


@dataclass(frozen=True)
class Rule:
    """A selection rule and how tables call it."""

    name: str
    label: str
    pick: Pick


def _best(steps: pd.DataFrame, metric: str, rounds: int) -> float:
    return _number(best(metric, steps[metric]))


def _last(steps: pd.DataFrame, metric: str, rounds: int) -> float:
    return _number(last(list(steps[metric])))


def _last10(steps: pd.DataFrame, metric: str, rounds: int) -> float:
    return _number(last10(zip(steps["step"], steps[metric], strict=True), rounds))


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _best_val(steps: pd.DataFrame, metric: str, rounds: int) -> float:
    return float(steps[metric].iloc[int(steps[VALIDATION].argmax())])


RULES = {
    rule.name: rule
    for rule in (
        Rule("last10", f"mean of the last {LAST} evaluations", _last10),
        Rule("last", "last evaluation", _last),
        Rule("best", "best on test", _best),
        Rule("best_val", "best on validation", _best_val),
    )
}


@dataclass(frozen=True)
class Pairs:
    """The runs of one cell side by side."""

    values: pd.DataFrame  # (origin, seed) × method; NaN where a method has no run
    diverged: frozenset[str]  # methods with a diverged run here


@dataclass(frozen=True)
class Scores:
    """One number per run: run_id, method, kind, cell, origin, seed, status, value; NaN where a run has none."""

    frame: pd.DataFrame
    metric: str
    rule: Rule

    @property
    def higher(self) -> bool:
        return metric_of(self.metric).higher

    @cached_property
    def cells(self) -> dict[str, Pairs]:
        """The runs of every cell, paired."""
        return {str(cell): _side_by_side(group) for cell, group in self.frame.groupby("cell", sort=False)}

    def best_of(self, values: pd.Series) -> float:
        """The best of some values of this metric; NaN among no values."""
        return float(values.max() if self.higher else values.min())


def _side_by_side(group: pd.DataFrame) -> Pairs:
    values = group.pivot(index=["origin", "seed"], columns="method", values="value")  # noqa: PD010 (none twice)
    return Pairs(values, frozenset(group.loc[group["status"] == Status.DIVERGED, "method"]))


def available_rules(store: Store) -> list[str]:
    """The rules this store has the numbers for; `best_val` needs runs with a validation set."""
    validated = VALIDATION in store.metrics and bool(store.metrics[VALIDATION].notna().any())
    return [name for name in RULES if name != "best_val" or validated]


def available_metrics(store: Store) -> list[str]:
    """The metrics that runs can be compared by."""
    numeric = store.metrics.select_dtypes("number").columns
    return [m for m in numeric if "/" in m and group_of(m).compared]


def scores(store: Store, metric: str = "test/accuracy", rule: str = "last10") -> Scores:
    """The number of every run under `rule`. Only finished runs have one: a diverged run is never averaged away."""
    if metric not in available_metrics(store):
        raise UserError(f"no run in {store.root} recorded {metric!r}; {nearest(metric, available_metrics(store))}")
    if rule not in available_rules(store):
        raise UserError(f"--select {rule} is not possible here; {nearest(rule, available_rules(store))}")
    needed = [metric, VALIDATION] if rule == "best_val" else [metric]
    finished = store.metrics["status"] == Status.FINISHED
    steps = store.metrics.loc[finished, ["run_id", "step", *dict.fromkeys(needed)]]
    # Every evaluation has the scores, so one that is missing was not finite and counts; diagnostics come now and then.
    steps = steps.dropna(subset=[key for key in needed if key not in SCORES])
    rounds = dict(zip(store.runs["run_id"], store.runs["rounds"], strict=True))
    picked = {
        run_id: RULES[rule].pick(group, metric, rounds[run_id]) for run_id, group in steps.groupby("run_id", sort=False)
    }
    frame = store.runs[["run_id", "method", "kind", "cell", "origin", "seed", "status", "reason"]].copy()
    frame["value"] = frame["run_id"].map(picked).astype(float) if picked else np.nan
    return Scores(frame, metric, RULES[rule])
