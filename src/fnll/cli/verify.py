"""`fnll verify`: whether the folders of a store hold what their runs wrote."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fnll.errors import UserError
from fnll.harness.integrity import CONFIG, Condition, Finding, examine
from fnll.harness.status import status_in

DESCRIPTION = """Compare every run of a store with the hashes that the runs noted themselves: metrics, diagnostics,
config, manifest, weights and checkpoints. `unverified` are runs of older versions, which noted none, and runs that have
no checkpoint yet. The exit code is 1 if a run is damaged, else 0.
"""
COLOURS = {Condition.INTACT: "green", Condition.UNVERIFIED: "yellow", Condition.DAMAGED: "red"}
UNBOUNDED = 10_000  # columns


def main(argv: Sequence[str]) -> int:
    """Print a table of what is not intact, or of every run, and a count."""
    parser = argparse.ArgumentParser(
        prog="fnll verify", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stores", nargs="+", type=Path, metavar="RUNS_DIR", help="where runs were written to")
    parser.add_argument("--all", action="store_true", help="list the intact runs, too")
    parser.add_argument("--json", action="store_true", help="for scripts: one JSON object a line and run")
    args = parser.parse_args(argv)
    folders = [folder for store in args.stores for folder in _runs(store)]
    found = [(folder, examine(folder, thorough=True)) for folder in folders]
    if args.json:
        for folder, finding in found:
            facts = {"run": str(folder), "status": status_in(folder), "state": finding.state, "reason": finding.reason}
            print(json.dumps(facts))
    else:
        _print(found, everything=args.all)
    return int(any(finding.state is Condition.DAMAGED for _, finding in found))


def _runs(store: Path) -> list[Path]:
    """The run folders of a store, also those that have lost their config."""
    if not store.is_dir():
        raise UserError(f"there is no directory {store}; give the runs_dir that `fnll run` or `fnll sweep` wrote to")
    found = [folder for folder in sorted(_folders(store)) if _is_run(folder)]
    if not found:
        deeper = [str(folder) for folder in sorted(store.iterdir()) if any(map(_is_run, _folders(folder)))]
        hint = (
            f"type fnll verify {deeper[0]}" if deeper else "give the runs_dir that `fnll run` or `fnll sweep` wrote to"
        )
        raise UserError(f"there are no runs in {store}; {hint}")
    return found


def _folders(place: Path) -> list[Path]:
    return [folder for folder in place.iterdir() if folder.is_dir()] if place.is_dir() else []


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (CONFIG, "summary.json", "metrics.jsonl", "lock"))


def _print(found: Sequence[tuple[Path, Finding]], *, everything: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = UNBOUNDED
    table = Table("run", "status", "files", "what is wrong", box=None, pad_edge=False)
    counts: Counter[Condition] = Counter()
    for folder, finding in found:
        counts[finding.state] += 1
        if everything or finding.state is not Condition.INTACT:
            word = f"[{COLOURS[finding.state]}]{finding.state}[/]"
            table.add_row(escape(folder.name), status_in(folder), word, escape(finding.reason))
    if table.rows:
        console.print(table)
    said = ", ".join(f"{counts[state]} {state}" for state in Condition if counts[state])
    console.print(f"{len(found)} runs: {said}", markup=False)
