"""`fnll check`: the conformance kit for one method."""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from rich.console import Console

from fnll.cli.waiting import waiting

if TYPE_CHECKING:
    from fnll.testing import Result

KIT = ("checks", "degenerate", "budgets")  # modules of fnll.testing that hold checks
MARKS = {"passed": "[green]✓[/]", "failed": "[red]✗[/]", "excused": "[yellow]–[/]", "unstated": "–"}


def main(argv: Sequence[str]) -> int:
    """Run the checks and say in plain words what holds, what does not, what that would mean and how to fix it."""
    parser = argparse.ArgumentParser(
        prog="fnll check",
        description="Test a method against the rules of a fair comparison, in worlds of six tiny clients (seconds).\n"
        "The exit code is 1 if a check fails.",
        epilog="checks:\n" + "\n".join(f"  {name:<22} {promise}" for name, promise in promises().items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("method", help="a method's name, or the path of its YAML")
    parser.add_argument("--only", default="", help="names of checks, separated by commas")
    parser.add_argument(
        "--json",
        action="store_true",
        help="for CI: one JSON object a line and check; outcome is passed, failed, excused, unstated or untried",
    )
    args = parser.parse_args(argv)
    with waiting("preparing the checks ..."):
        from fnll.testing import check_method, subject_of  # late: torch takes seconds to import, and --help needs none

        subject = subject_of(args.method)
    results = []
    console = Console(highlight=False)
    for result in check_method(subject, [name for name in args.only.split(",") if name]):
        results.append(result)
        if args.json:
            print(json.dumps(_record(args.method, result)))
        elif result.outcome != "untried":
            _show(console, result)
    if not args.json:
        _conclude(console, args.method, results)
    return int(any(result.outcome == "failed" for result in results))


def promises() -> dict[str, str]:
    """The checks and what each promises, as their source states it."""
    found: dict[str, str] = {}
    for module in KIT:
        tree = ast.parse((files("fnll") / "testing" / f"{module}.py").read_text())
        for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            for mark in function.decorator_list:
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "check":
                    found[function.name] = ast.literal_eval(mark.args[0])
    return found


def _conclude(console: Console, method: str, results: list[Result]) -> None:
    number = Counter(result.outcome for result in results)
    held = f"{number['passed']} of {len(results)} checks hold"
    if number["excused"]:
        held += f", {number['excused']} excused"
    if number["unstated"]:
        held += f", {number['unstated']} not stated"
    if number["untried"]:
        console.print(f"[red]the method cannot be made[/]: {number['untried']} further checks were not tried")
    elif number["failed"]:
        console.print(f"[red]{held}[/], {number['failed']} failed", soft_wrap=True)
    elif len(results) < len(promises()):
        console.print(f"[green]{held}[/]; the whole list decides: fnll check {method}", soft_wrap=True)
    else:
        console.print(f"[green]{held}[/]: {method} may enter the comparison", soft_wrap=True)


def _show(console: Console, result: Result) -> None:
    check = result.check
    said = f"not stated: {result.detail}" if result.outcome == "unstated" else check.promise
    console.print(f"{MARKS[result.outcome]} [bold]{check.name}[/]  {said}", soft_wrap=True)
    if result.outcome == "failed":
        console.print(f"    what happened   {result.detail}", soft_wrap=True, markup=False)
        console.print(f"    why it matters  {check.stakes}", soft_wrap=True, markup=False)
        console.print(f"    how to fix it   {check.remedy}", soft_wrap=True, markup=False)
    elif result.outcome == "excused":
        console.print(f"    excused by the method: {result.detail}", soft_wrap=True, markup=False)


def _record(method: str, result: Result) -> dict[str, str]:
    check = result.check
    return {
        "method": method,
        "check": check.name,
        "outcome": result.outcome,
        "detail": result.detail,
        "promise": check.promise,
        "stakes": check.stakes,
        "remedy": check.remedy,
    }
