"""`fnll check`: the conformance kit for one method."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from rich.console import Console

from fnll.testing import CHECKS, Result, check_method, subject_of

MARKS = {"passed": "[green]✓[/]", "failed": "[red]✗[/]", "excused": "[yellow]–[/]"}


def main(argv: Sequence[str]) -> int:
    """Run the checks and say in plain words what holds, what does not, what that would mean and how to mend it."""
    parser = argparse.ArgumentParser(
        prog="fnll check",
        description="Test a method against the rules of a fair comparison, in worlds of six tiny clients (seconds).",
        epilog="checks:\n" + "\n".join(f"  {name:<22} {check.promise}" for name, check in CHECKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("method", help="a method's name, or the path of its YAML")
    parser.add_argument("--only", default="", help="names of checks, separated by commas")
    parser.add_argument("--json", action="store_true", help="one JSON object per check, for CI")
    args = parser.parse_args(argv)
    results = []
    console = Console(highlight=False)
    for result in check_method(subject_of(args.method), [name for name in args.only.split(",") if name]):
        results.append(result)
        if args.json:
            print(json.dumps(_record(result)))
        else:
            _show(console, result)
    failed = [result for result in results if result.outcome == "failed"]
    if not args.json:
        count = f"{len(results) - len(failed)} of {len(results)} checks hold"
        console.print(f"[red]{count}[/]" if failed else f"[green]{count}[/]: {args.method} may enter the comparison")
    return 1 if failed else 0


def _show(console: Console, result: Result) -> None:
    check = result.check
    console.print(f"{MARKS[result.outcome]} [bold]{check.name}[/]  {check.promise}", soft_wrap=True)
    if result.outcome == "failed":
        console.print(f"    what happened   {result.detail}", soft_wrap=True, markup=False)
        console.print(f"    what is at stake  {check.stakes}", soft_wrap=True, markup=False)
        console.print(f"    how to mend it  {check.remedy}", soft_wrap=True, markup=False)
    elif result.outcome == "excused":
        console.print(f"    excused by the method: {result.detail}", soft_wrap=True, markup=False)


def _record(result: Result) -> dict[str, str]:
    check = result.check
    return {
        "check": check.name,
        "outcome": result.outcome,
        "detail": result.detail,
        "promise": check.promise,
        "stakes": check.stakes,
        "remedy": check.remedy,
    }
