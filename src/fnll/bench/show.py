"""Results for people: tables in a terminal, Markdown for a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

MARKS = {True: "✓", False: "✗", None: ""}


def show(console: Console, suite: str, record: Mapping[str, Any]) -> None:
    """The tables of one suite, from its record."""
    if record["timings"]:
        console.print(timings_table(suite, record["timings"]))
    phases = record["facts"].get("seconds_per_round")
    if phases:
        console.print(phases_table(record["facts"]))
    console.print(claims_table(suite, record["claims"]))


def timings_table(suite: str, timings: Mapping[str, Mapping[str, Any]]) -> Table:
    """What took how long."""
    table = _table(f"{suite}: times", "", "best s", "median s", "samples/s")
    for name, timing in timings.items():
        rate = timing["samples_per_s"]
        seconds = (f"{timing[key]:.3f}" for key in ("best_s", "median_s"))
        table.add_row(name, *seconds, f"{rate:,.0f}" if rate else "")
    return table


def phases_table(facts: Mapping[str, Any]) -> Table:
    """Where a round's time goes."""
    names = " · ".join(str(facts[key]) for key in ("method", "model", "dataset", "executor"))
    table = _table(f"phases of a round: {names} ({', '.join(facts['stages'])})", "", "seconds", "share", "µs/sample")
    seconds, samples = facts["seconds_per_round"], facts["samples_per_round"]
    total = sum(seconds.values())
    for name, value in (*seconds.items(), ("all", total)):
        each = f"{1e6 * value / samples:,.1f}" if samples else ""
        table.add_row(name, f"{value:.4f}", f"{value / total:.1%}", each)
    return table


def claims_table(suite: str, claims: Iterable[Mapping[str, Any]]) -> Table:
    """The ratios, with what they should be."""
    table = _table(f"{suite}: ratios", "", "measured", "wanted", "")
    for claim in claims:
        table.add_row(claim["name"], *_cells(claim))
    return table


def markdown(records: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """All claims of several records as one table."""
    rows = [
        f"| {suite} | {claim['name']} | {' | '.join(_cells(claim))} |"
        for suite, record in records
        for claim in record["claims"]
    ]
    return "\n".join(["| suite | what | measured | wanted | |", "|---|---|---|---|---|", *rows])


def _cells(claim: Mapping[str, Any]) -> tuple[str, str, str]:
    value = f"{claim['value']:#.3g}".rstrip(".") if abs(claim["value"]) < 100 else f"{claim['value']:,.0f}"
    bound = "at_least" if claim["at_least"] is not None else "at_most"
    wanted = "" if claim[bound] is None else f"{'≥' if bound == 'at_least' else '≤'} {claim[bound]:g}"
    return f"{value} {claim['unit']}".strip(), wanted, MARKS[claim["holds"]]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table
