"""Every number that a run records, described once: evaluation, report, dashboard and docs/metrics.md read it here.

A new diagnostic is computed in `diagnostics.py` (or `evaluate.py`) and gets one entry in `METRICS`; a key without an
entry is refused when it is first recorded. Nothing here imports torch, so that reports and the command line may.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

TOP5 = "test/top5_accuracy"  # where there are more than five classes
LAST = 10  # steps of the common grid that `last10` averages


class Unit(StrEnum):
    """What a metric counts in."""

    SHARE = "share"  # in [0, 1], shown in per cent
    NUMBER = "number"
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"


@dataclass(frozen=True)
class Group:
    """What the keys with one prefix have in common; it also speaks for keys of other versions that are not listed."""

    prefix: str
    section: str  # of the dashboard
    unit: Unit = Unit.SHARE
    higher: bool = True  # is better
    diagnostic: bool = False  # drawn among the diagnostics
    compared: bool = True  # may rank methods in a table


@dataclass(frozen=True)
class Metric:
    """One recorded key."""

    key: str
    words: str
    unit: Unit
    higher: bool  # is better
    group: Group
    heading: str  # over a column of a table
    recorded: bool = True  # or made from others by the report

    @property
    def is_fraction(self) -> bool:
        """Whether it reads best in per cent."""
        return self.unit is Unit.SHARE

    @property
    def title(self) -> str:
        """The words as the beginning of a sentence."""
        return self.words[:1].upper() + self.words[1:]


GROUPS = {
    group.prefix: group
    for group in (
        Group("test", "Accuracy"),
        Group("val", "Accuracy"),
        Group("local", "Accuracy"),
        Group("memory", "Accuracy", diagnostic=True),
        Group("detect", "Detection of noisy clients", diagnostic=True),
        Group("levels", "Detection of noisy clients", Unit.NUMBER, higher=False, diagnostic=True),
        Group("find", "Selection and correction of labels", diagnostic=True),
        Group("select", "Selection and correction of labels", diagnostic=True),
        Group("labels", "Selection and correction of labels", diagnostic=True),
        Group("comm", "Cost", Unit.COUNT, higher=False, compared=False),
        Group("time", "Cost", Unit.SECONDS, higher=False, compared=False),
        Group("sys", "Cost", Unit.NUMBER, higher=False, compared=False),
    )
}


def _entry(
    key: str,
    words: str,
    *,
    unit: Unit | None = None,
    higher: bool | None = None,
    heading: str = "",
    recorded: bool = True,
) -> Metric:
    """A metric that is like its group, but for what is said."""
    group = group_of(key)
    better = group.higher if higher is None else higher
    return Metric(key, words, unit or group.unit, better, group, heading or words, recorded)


def group_of(key: str) -> Group:
    """The group of a key, by its prefix."""
    prefix = key.partition("/")[0]
    return GROUPS.get(prefix) or Group(prefix, "Other", Unit.SHARE if "accuracy" in key else Unit.NUMBER)


METRICS = {
    metric.key: metric
    for metric in (
        _entry("test/accuracy", "test accuracy"),
        _entry("test/balanced_accuracy", "balanced test accuracy"),
        _entry("test/loss", "test loss", unit=Unit.NUMBER, higher=False),
        _entry(TOP5, "top-5 test accuracy"),
        _entry("val/accuracy", "accuracy on held-out noisy labels"),
        _entry("comm/client_updates", "client updates"),
        _entry("comm/contacts", "contacts"),
        _entry("comm/up_bytes", "bytes sent by clients", unit=Unit.BYTES, heading="MB up"),
        _entry("comm/down_bytes", "bytes sent to clients", unit=Unit.BYTES, heading="MB down"),
        _entry("comm/bytes", "bytes sent, up and down", unit=Unit.BYTES, heading="MB", recorded=False),
        _entry("select/precision", "label precision of the samples trained on"),
        _entry("select/recall", "label recall of the samples trained on"),
        _entry("labels/noise", "share of wrong labels", higher=False),
        _entry("labels/fixed", "labels fixed"),
        _entry("labels/broken", "labels broken", higher=False),
        _entry("labels/left", "wrong labels left", higher=False),
        _entry("detect/recall", "recall of noisy clients", heading="Re (%)"),
        _entry("detect/precision", "precision of noisy clients", heading="Pr (%)"),
        _entry("detect/f1", "F1 of noisy clients", heading="F1 (%)"),
        _entry("detect/exact", "noisy clients exactly right", heading="MR (%)"),
        _entry("find/accused", "clean clients called noisy", higher=False),
        _entry("find/auc", "area under the curve of suspected samples"),
        _entry("find/precision_1", "wrong labels among the top 1 % of suspects"),
        _entry("find/precision_5", "wrong labels among the top 5 % of suspects"),
        _entry("find/precision_10", "wrong labels among the top 10 % of suspects"),
        _entry("levels/error", "error of estimated noise levels"),
        _entry("levels/rank", "rank correlation of noise levels", higher=True),
        _entry("levels/error_after", "error of noise levels after correction"),
        _entry("memory/wrong", "wrong labels memorised", higher=False),
        _entry("memory/true", "mislabelled but predicted right"),
        _entry("local/accuracy", "accuracy of the clients' own models"),
        _entry("local/accuracy_min", "accuracy of the worst client's own model"),
        _entry("local/accuracy_max", "accuracy of the best client's own model"),
        _entry("time/step_s", "seconds per step"),
        _entry("time/total_s", "seconds"),
        _entry("time/eval_s", "seconds per evaluation"),
    )
}
NOT_METRICS = ("step", "stage")  # the other keys of a row: where it is


def metric_of(key: str) -> Metric:
    """The entry of a key; a key of another version is called by its name, and is else like its group."""
    return METRICS.get(key) or _entry(key, key)


def recorded(prefix: str) -> tuple[str, ...]:
    """The keys with this prefix that runs record, in order."""
    return tuple(key for key, metric in METRICS.items() if metric.group.prefix == prefix and metric.recorded)


SCORES = tuple(key for key in recorded("test") if key != TOP5)  # what every evaluation has, and a summary sums up


def require_registered(keys: Iterable[str]) -> None:
    """Refuse a key that nobody described: it would be recorded, and then be missing wherever people look."""
    unknown = [key for key in keys if key not in NOT_METRICS and not (key in METRICS and METRICS[key].recorded)]
    if unknown:
        raise LookupError(f"{', '.join(unknown)}: no entry in fnll.harness.metrics.METRICS; add one to record it")


# --- the number of a whole run ----------------------------------------------------------------------------------------
# A value that is not finite (null in its row, NaN in a frame) is never the best; as one of the last it leaves the run
# without a last value or a mean of the last ten.

Value = float | None


def best(metric: str, values: Iterable[Value]) -> Value:
    """The best of some values; None among none."""
    known = [value for value in values if not _lost(value)]
    pick = max if metric_of(metric).higher else min
    return pick(known, default=None)  # type: ignore[type-var]


def last(values: Sequence[Value]) -> Value:
    """The last of some values."""
    return None if not values or _lost(values[-1]) else values[-1]


def last10(steps: Iterable[tuple[int, Value]], rounds: int) -> Value:
    """The mean over the last ten places of the grid: by place, not by count, since longer rounds fill fewer of them."""
    tail = [value for place, value in steps if place > rounds - LAST]
    known = [value for value in tail if value is not None and not _lost(value)]
    return sum(known) / len(known) if known and len(known) == len(tail) else None


def _lost(value: Value) -> bool:
    return value is None or math.isnan(value)
