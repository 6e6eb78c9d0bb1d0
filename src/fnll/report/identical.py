"""Rows that are the same row twice: a method that never left its warm-up *is* the method that it warms up with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fnll.harness.status import Status
from fnll.report.store import Store
from fnll.report.words import listed

COLUMNS = ["cell", "method", "origin", "seed", "digest"]
Runs = Mapping[tuple[str, int], str]  # (scenario, seed) → a hash of all scores of the run


def twins(store: Store, rows: Sequence[str]) -> dict[tuple[str, str], str]:
    """(method, cell) → the first row above it that all its finished runs are identical to, at every evaluation."""
    finished = store.runs[(store.runs["status"] == Status.FINISHED) & (store.runs["digest"] != "")]
    runs: defaultdict[tuple[str, str], dict[tuple[str, int], str]] = defaultdict(dict)
    for cell, method, origin, seed, digest in finished[COLUMNS].itertuples(index=False):
        runs[cell, method][origin, seed] = digest
    found: dict[tuple[str, str], str] = {}
    for cell in store.cell_labels:
        known: dict[str, Runs] = {}
        for method in rows:
            mine = runs.get((cell, method), {})
            first = next((other for other, theirs in known.items() if mine and mine.items() <= theirs.items()), None)
            if first is None:
                known[method] = mine
            else:
                found[method, cell] = first
    return found


def twin_notes(store: Store, found: Mapping[tuple[str, str], str]) -> list[str]:
    """A sentence for every row that is another one somewhere."""
    pairs: dict[tuple[str, str], list[str]] = {}
    for (method, cell), original in found.items():
        pairs.setdefault((method, original), []).append(cell)
    return [
        f"≡: {store.name(method)} is {store.name(original)} bit for bit, at every evaluation of every run"
        f"{'' if len(cells) == len(store.cells) else f' (in {_columns(cells, store)})'}; it is marked neither best nor "
        "tied."
        for (method, original), cells in pairs.items()
    ]


def _columns(cells: Sequence[str], store: Store) -> str:
    return listed(cells) if len(cells) <= 3 else f"{len(cells)} of {len(store.cells)} columns"
