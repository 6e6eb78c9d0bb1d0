"""`fnll methods`: the installed methods, what they do, their papers, and the extra information each uses."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fnll.errors import UserError, nearest
from fnll.harness.catalogue import Described, bibliography, described
from fnll.harness.choices import options


def main(argv: Sequence[str]) -> int:
    """List the choices of the config group `method`."""
    parser = argparse.ArgumentParser(prog="fnll methods", description="The installed methods, ours and the plugins'.")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="machine-readable, with all methods")
    form.add_argument("--bibtex", action="store_true", help="the papers' BibTeX entries")
    form.add_argument("--papers", action="store_true", help="each method's paper, and the extra information it uses")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these methods")
    parser.add_argument("--all", action="store_true", help="also the released codes' forms (NAME_official)")
    parser.add_argument(
        "--config-dir", "-cd", type=Path, action="append", default=[], metavar="DIR", help="a folder of more configs"
    )
    args = parser.parse_args(argv)
    rows = _chosen(args.names, args.config_dir)
    shown = [row for row in rows if args.all or args.names or not row.official]
    if args.json:
        print(json.dumps([record(row) for row in rows], indent=2))
    elif args.bibtex:
        print("\n\n".join(cited(shown, args.config_dir)))
    else:
        console = Console(highlight=False)
        console.print(_papers(shown) if args.papers else _table(shown))
        console.print(_more(len(rows) - len(shown)), style="dim")
    return 0


def describe(choice: str, config_dirs: Sequence[Path] = ()) -> dict[str, Any]:
    """What `--json` says about an installed method."""
    return record(described(choice, config_dirs))


def record(row: Described) -> dict[str, Any]:
    """A method for machines."""
    return {
        "name": row.choice,
        "title": row.name,
        "does": row.does,
        "paper": row.paper,
        "cite": list(row.cite),
        "class": row.target,
        "privileges": list(row.privileges),
    }


def cited(rows: Sequence[Described], config_dirs: Sequence[Path] = ()) -> list[str]:
    """The BibTeX entries of some methods, each once."""
    known = bibliography(config_dirs)
    keys = dict.fromkeys(key for row in rows for key in row.cite)
    if unknown := [key for key in keys if key not in known]:
        raise UserError(f"there is no BibTeX entry {', '.join(unknown)}; add it to references.bib beside the configs")
    return [known[key] for key in keys]


def _chosen(names: Sequence[str], config_dirs: Sequence[Path]) -> list[Described]:
    known = options("method", config_dirs)
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"there is no method called {unknown[0]!r}; {nearest(unknown[0], known)}")
    return [described(name, config_dirs) for name in names or known]


def _table(rows: Sequence[Described]) -> Table:
    table = Table("method=", "name", "what it does, and when", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(row.choice, row.name, row.does or row.paper)
    return table


def _papers(rows: Sequence[Described]) -> Table:
    table = Table("method=", "paper", "extra information used", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(row.choice, row.paper, "; ".join(row.privileges) or "–")
    return table


def _more(hidden: int) -> str:
    others = f"{hidden} forms of released codes are not shown: --all. " if hidden else ""
    return f"\n{others}--papers: papers and privileges; --bibtex: to cite them; docs/which-method.md: which to choose."
