"""What the runs of a store warned of, as footnotes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from fnll.report.store import Store
from fnll.report.words import counted, listed

SCENARIO = "fnll.scenario"
FEW = 3  # columns that a note names


@dataclass
class NoticeGroup:
    """One thing that runs warned of."""

    texts: dict[str, None] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)
    cells: dict[str, None] = field(default_factory=dict)


def warning_notes(store: Store) -> list[str]:
    """Every warning once: those about scenarios first, with their columns; then those of methods, with their runs."""
    groups: dict[tuple[str, str], NoticeGroup] = {}
    for run_id, method, cell, warnings in store.runs[["run_id", "method", "cell", "warnings"]].itertuples(index=False):
        for logger, text, about in warnings:
            who = "" if logger == SCENARIO or logger.startswith(f"{SCENARIO}.") else method
            group = groups.setdefault((who, about or text), NoticeGroup())
            group.texts[text] = None
            group.runs.add(run_id)
            group.cells[cell] = None
    by_method = store.runs["method"].value_counts()
    scenarios = [
        f"Warning: {_text(about, group)}{_columns(group.cells, store)}."
        for (who, about), group in groups.items()
        if not who
    ]
    methods = [
        f"Warning of {store.name(who)}: {_text(about, group)}{_runs(len(group.runs), int(by_method[who]))}."
        for (who, about), group in groups.items()
        if who
    ]
    return scenarios + methods


def _text(about: str, group: NoticeGroup) -> str:
    """The warning itself where all runs say the same, else what they have in common."""
    return (next(iter(group.texts)) if len(group.texts) == 1 else about).rstrip(".")


def _columns(cells: Collection[str], store: Store) -> str:
    if len(cells) == len(store.cells):
        return ""
    return f" ({listed(cells) if len(cells) <= FEW else f'{len(cells)} of {len(store.cells)} columns'})"


def _runs(number: int, total: int) -> str:
    return "" if number == total else f" (in {number} of {counted(total, 'run')})"
