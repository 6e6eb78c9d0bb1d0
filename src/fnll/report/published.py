"""A paper's printed numbers beside ours: the difference, whether the spreads allow it, and why it may be there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fnll.errors import UserError
from fnll.harness.status import Status
from fnll.published import EXPERIMENT, Printed, Record, differences, matches, table, tables
from fnll.report.cells import method_name, show
from fnll.report.folders import StoredRun, read_run
from fnll.report.measured import values_of
from fnll.report.store import Store

TELLING = ("dataset", "model")  # a run with others of these is compared only with a table that was asked for by name


@dataclass(frozen=True)
class Beside:
    """Our runs of one printed cell, in the paper's unit."""

    record: Record
    key: str  # of our row, which gives it its colour
    method: str  # our row by its name
    values: tuple[float, ...]  # one per finished run; NaN: a cost that was never reached
    run_ids: tuple[str, ...]
    reasons: tuple[str, ...]  # known causes of a difference

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def std(self) -> float:
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")

    @property
    def difference(self) -> float:
        return float("nan") if self.record.value is None else self.mean - self.record.value

    @property
    def within(self) -> bool | None:
        """Whether the difference is at most the sum of the spreads that are known; None if none is."""
        spreads = [s for s in (self.std, self.record.spread) if s is not None and not np.isnan(s)]
        return abs(self.difference) <= sum(spreads) if spreads and not np.isnan(self.difference) else None


@dataclass(frozen=True)
class Comparison:
    """One printed table with what we have of it."""

    printed: Printed
    cells: tuple[Beside, ...]

    def of(self, record: Record) -> list[Beside]:
        return [cell for cell in self.cells if cell.record is record]


def comparisons(store: Store, name: str = "") -> list[Comparison]:
    """The printed tables that the store has cells of, or the one called `name`, whatever data the runs are on.

    Without a name, runs count that have the paper's data and network, or that an experiment of the table made.
    """
    printed = [table(name)] if name else [table(known) for known in tables()]
    runs = [(row, described(read_run(Path(str(row.path))))) for row in _finished(store).itertuples()]
    found = [_compared(store, one, runs, named=bool(name)) for one in printed]
    kept = [comparison for comparison in found if comparison.cells]
    if not kept:
        raise UserError(_nothing(store, name))
    return kept


def _finished(store: Store) -> pd.DataFrame:
    return store.runs[store.runs["status"] == Status.FINISHED]


def described(run: StoredRun) -> dict[str, Any]:
    """A run's choices and dotted settings in one mapping."""
    choices = {group: chosen for group, chosen in run.choices.items() if "@" not in group}
    inside = {f"{slot.partition('@')[2]}": chosen for slot, chosen in run.choices.items() if "@" in slot}
    return {**run.config, **choices, **inside, "method": method_name(run).partition(" + ")[0]}


def _compared(store: Store, printed: Printed, runs: Sequence[tuple[Any, dict[str, Any]]], *, named: bool) -> Comparison:
    cells = []
    for record in printed.records:
        by_method: defaultdict[str, list[tuple[Any, dict[str, Any]]]] = defaultdict(list)
        for row, settings in _of_cell(record, runs, named=named):
            by_method[str(row.method)].append((row, settings))
        for method, mine in by_method.items():
            ids = [str(row.run_id) for row, _ in mine]
            if known := values_of(store, record, ids):
                reasons = tuple(_reasons(record, [settings for _, settings in mine]))
                cells.append(Beside(record, method, store.name(method), tuple(known.values()), tuple(known), reasons))
    return Comparison(printed, (*cells, *_means_of_rows(printed, cells)))


def _of_cell(
    record: Record, runs: Sequence[tuple[Any, dict[str, Any]]], *, named: bool
) -> list[tuple[Any, dict[str, Any]]]:
    """The runs of a printed cell, of all that fit: those that were made for its table, if there are any.

    Else those of no figure, since figures vary what tables do not name (the length of a warm-up); else all.
    """
    if record.mean_of_row:
        return []
    found = [
        (row, settings)
        for row, settings in runs
        if matches(record.settings, settings) and _itself(record, settings) and (named or _at_home(record, settings))
    ]
    nearest = min((_distance(record, settings) for _, settings in found), default=0)
    return [(row, settings) for row, settings in found if _distance(record, settings) == nearest]


def _itself(record: Record, settings: Mapping[str, Any]) -> bool:
    """Whether a run is the row's method, and not that method with another inside it (FedCorr's usual stage)."""
    return "method.usual" in record.settings or settings.get("method.usual") in (None, "null")


def _made_for(record: Record, settings: Mapping[str, Any]) -> bool:
    return _made(settings) == record.table


def _made(settings: Mapping[str, Any]) -> str:
    """What a run was made for: a table or figure, or nothing."""
    experiment = str(settings.get("experiment") or "")
    return experiment.removeprefix(EXPERIMENT) if experiment.startswith(EXPERIMENT) else ""


def _distance(record: Record, settings: Mapping[str, Any]) -> int:
    made = _made(settings)
    if made == record.table:
        return 0
    return 2 if made and made not in tables() else 1


def _at_home(record: Record, settings: Mapping[str, Any]) -> bool:
    """Whether a run is on the paper's own ground, or made for this very table."""
    return _made_for(record, settings) or not {*differences(record.world, settings)} & {*TELLING}


def _means_of_rows(printed: Printed, cells: Sequence[Beside]) -> Iterator[Beside]:
    """Means that the paper prints behind a row, where we have the whole row."""
    for record in printed.records:
        if record.mean_of_row:
            wanted = sum(other.row == record.row and not other.mean_of_row for other in printed.records)
            mine = [cell for cell in cells if cell.record.row == record.row]
            if len(mine) == wanted:
                ids = tuple(run_id for cell in mine for run_id in cell.run_ids)
                means = tuple(cell.mean for cell in mine)
                yield Beside(record, mine[0].key, mine[0].method, means, ids, mine[0].reasons)


def _reasons(record: Record, runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is known to set our runs apart from the paper's: data, budget, trials, and what it does not tell."""
    settings = runs[0]
    if settings.get("dataset.images") == "folder":
        yield "data copy: images from a folder, not the published files"
    words: dict[str, None] = {}
    for run in runs:
        told = str(run.get("protocol", ""))
        if "but " in told:
            words[told.partition("but ")[2]] = None
        else:
            words |= {
                f"{key} {show(mine)} ({show(theirs)})": None
                for key, (mine, theirs) in differences(record.world, run).items()
            }
    yield from words
    if record.trials is not None and len(runs) < record.trials:
        yield f"trials {len(runs)} ({record.trials})"
    if record.erratum:
        yield f"erratum: {record.erratum}"
    yield from (f"unpublished: {what}" for what in record.unpublished)


def _nothing(store: Store, name: str) -> str:
    if not name:
        return (
            f"no run in {store.root} is a cell of a published table on its own data; name the table to compare with, "
            f"as in --published {tables()[0]}, or run one: fnll sweep experiment={EXPERIMENT}{tables()[0]}"
        )
    if table(name).records[0].select == "cost":
        return f"--published {name} counts passes, which no run records; `fnll bench --suite passes` measures it"
    cells = ", ".join(table(name).columns[:3])
    return f"no finished run in {store.root} is a cell of {name} (its columns: {cells}, ...; see docs/published.md)"
