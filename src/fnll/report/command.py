"""What `fnll report` does; its options are in `fnll.cli.report`."""

from __future__ import annotations

import argparse
import re

from rich.console import Console

from fnll.errors import UserError
from fnll.harness.status import Status
from fnll.report.analysis import analyse
from fnll.report.beside import others
from fnll.report.document import write
from fnll.report.render import to_rich
from fnll.report.store import Store, load
from fnll.report.table import Table
from fnll.report.words import counted
from fnll.system.files import make_folder

UNBOUNDED = 10_000  # columns


def main(args: argparse.Namespace) -> int:
    """Write the report, print its headline table and where the page is."""
    store = chosen(load(*args.runs_dir), args.rows, args.names)
    analysis = analyse(store, args.metric, args.select, args.reference)
    targets = parse_targets(args.targets)
    beside = others(store, args.published, args.reference_curves, parse_mixtures(args.mixtures))
    try:
        report = write(
            analysis, make_folder(args.out), targets, with_figures=args.figures, others=beside, label=args.label
        )
    except OSError as error:
        raise UserError(f"--out {args.out}: cannot write the report there ({error.strerror or error})") from error
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = UNBOUNDED  # a pipe has no width, and the one that is assumed would cut the numbers off
    for table in (report.headline, *(table for table in beside.tables if not table.words)):
        _print(console, table)
    console.print(f"\n{_counted(store)}", markup=False, highlight=False)
    console.print(f"Report: {report.html}", markup=False, highlight=False)
    return 0


def _print(console: Console, table: Table) -> None:
    for block in to_rich(table, console.width if console.is_terminal else None):
        console.print(block)
    if table.caption:
        console.print(f"  {table.caption}", style="dim", markup=False, highlight=False)
    for note in table.footnotes:
        console.print(f"  {note}", style="dim", markup=False, highlight=False)


def chosen(store: Store, rows: str, names: str) -> Store:
    """The store with the rows and names that `--rows` and `--names` ask for."""
    pairs = [pair.partition("=") for pair in _parts(names)]
    if any(not old.strip() or not new.strip() for old, _, new in pairs):
        raise UserError(f"--names takes ROW=NAME, separated by commas, as fedavg=FedAvg,fedcorr=Ours; got {names!r}")
    store = store.renamed({old.strip(): new.strip() for old, _, new in pairs})
    return store.only(_parts(rows)) if rows.strip() else store


def _parts(text: str) -> list[str]:
    """What commas separate, outside of brackets: `fedprox (mu=0.1, tau=1)` is one row."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def parse_mixtures(number: int) -> int:
    """How many mixtures; 0: none are fitted."""
    if number < 0:
        raise UserError(f"--mixtures takes how many mixtures to fit per run, as --mixtures 10000; got {number}")
    return number


def parse_targets(text: str) -> tuple[float, ...]:
    """`0.8,0.9` as numbers."""
    try:
        targets = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        targets = (2.0,)
    if any(not 0 < target <= 1 for target in targets):
        raise UserError(f"--targets must be accuracies in (0, 1], separated by commas, as 0.8,0.9; got {text!r}")
    return targets


def _counted(store: Store) -> str:
    counts = store.runs["status"].value_counts()
    finished = counts.pop(Status.FINISHED)
    others = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    return f"{counted(int(finished), 'run')} finished" + (f", {others}" if others else "")
