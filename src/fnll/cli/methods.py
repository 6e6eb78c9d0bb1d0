"""`fnll methods`: the installed methods, their papers, and the extra information each uses."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fnll.harness.config import compose, options
from fnll.harness.prepare import made

ORACLES = {"true_labels": "the true labels", "drop_noisy": "which labels are wrong"}


def main(argv: Sequence[str]) -> int:
    """List every choice of the config group `method`."""
    parser = argparse.ArgumentParser(prog="fnll methods", description="The installed methods, ours and the plugins'.")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument(
        "--config-dir", "-cd", type=Path, action="append", default=[], metavar="DIR", help="a folder of more configs"
    )
    args = parser.parse_args(argv)
    rows = [describe(name, args.config_dir) for name in options("method", args.config_dir)]
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    table = Table("method", "paper", "extra information used", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(row["name"], row["paper"], "; ".join(row["privileges"]) or "–")
    Console(highlight=False).print(table)
    return 0


def describe(name: str, config_dirs: Sequence[Path] = ()) -> dict[str, Any]:
    """Name, paper, class and privileges of an installed method."""
    request = compose([f"method={name}"], config_dirs)
    target = made(request.cfg.method, "method").func
    given = list(getattr(target, "privileges", ()))
    if request.cfg.scenario.oracle != "none":
        given.append(f"{ORACLES[request.cfg.scenario.oracle]} (an upper bound, not a method)")
    return {
        "name": name,
        "paper": (target.__doc__ or "").strip().split("\n")[0],
        "class": f"{target.__module__}.{target.__qualname__}",
        "privileges": given,
    }
