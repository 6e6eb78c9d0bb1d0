"""Kill, fill, flip and damage runs for a given time, and count whether any number changes: `make chaos MINUTES=10`.

Victims are forked from a process that has imported everything and prepared the run, so that a kill costs what the run
itself costs. Half of the kills come at a random moment, half at a random operation on the run's files; sweeps are
killed with or without their workers. The attacks are in `kills.py` and `damage.py`.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TextIO

os.environ["OMP_NUM_THREADS"] = "1"

import damage  # noqa: F401 (the attacks register themselves)
import kills  # noqa: F401
import torch
from arena import ATTACKS, Arena, warm_up
from rich.console import Console
from rich.table import Table

EVERY = 60.0  # seconds between two notes of how far it has come


def main() -> int:
    args = arguments()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    unknown = set(filter(None, args.only.split(","))) - set(ATTACKS)
    if unknown:
        print(f"--only: no attack {', '.join(unknown)}; there are {', '.join(ATTACKS)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    arena = Arena(Path(tempfile.mkdtemp(prefix="fnll-chaos-")))
    os.environ["FNLL_CACHE"] = f"{arena.root}/cache"
    warm_up()
    try:
        campaign(arena, args, began)
    except KeyboardInterrupt:
        print("interrupted; so far:", file=sys.stderr)
    show(arena, time.monotonic() - began, sys.stdout)
    if not arena.failures:  # else somebody will want to look at what is left
        shutil.rmtree(arena.root, ignore_errors=True)
    return int(bool(arena.failures))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kills", type=int, default=None, help="stop after so many kills, if that is earlier")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="keep the table so far in this file")
    parser.add_argument("--only", default="", help="names of attacks, separated by commas")
    return parser.parse_args()


def campaign(arena: Arena, args: argparse.Namespace, began: float) -> None:
    """Attack after attack, until the time is over or there were enough kills."""
    rng, noted = random.Random(args.seed), 0.0
    chosen = {name: pair for name, pair in ATTACKS.items() if not args.only or name in args.only.split(",")}
    weights = [weight for weight, _ in chosen.values()]
    while (passed := time.monotonic() - began) < 60 * args.minutes:
        if args.kills and sum(count for name, count in arena.tried.items() if "SIGKILL" in name) >= args.kills:
            break
        if args.log and passed - noted > EVERY:
            noted = passed
            with args.log.open("w") as file:
                show(arena, passed, file)
        (one,) = rng.choices(list(chosen), weights)
        try:
            chosen[one][1](arena, rng)
        except Exception as error:  # of the campaign or of the code: either way somebody must look
            arena.failures.append(f"{one}: {type(error).__name__}: {error}")
            traceback.print_exc()


def show(arena: Arena, seconds: float, file: TextIO) -> None:
    table = Table("attack", "tried", "survived", "failed", "runs followed to the end", box=None, pad_edge=False)
    for name in ATTACKS:
        tried, survived = arena.tried[name], arena.survived[name]
        table.add_row(name, str(tried), str(survived), str(tried - survived), str(arena.ends[name] or "–"))
    console = Console(width=120, highlight=False, file=file)
    console.print(table)
    methods = len({case.method for case in arena.whole})
    console.print(f"{methods} methods, {seconds / 60:.1f} minutes; failures: {len(arena.failures)}")
    for failure in arena.failures:
        console.print(failure, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
