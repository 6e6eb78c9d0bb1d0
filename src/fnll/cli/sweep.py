"""`fnll sweep`: a grid of runs, in parallel; finished ones are skipped, interrupted ones resumed."""

from __future__ import annotations

import argparse
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from fnll.cli.waiting import waiting
from fnll.errors import UserError, require, require_integer
from fnll.harness.config import compose, store_of
from fnll.harness.status import Status
from fnll.published import EXPERIMENT
from fnll.sweep.bundles import bundled
from fnll.sweep.conductor import Conductor
from fnll.sweep.display import Plain, Terminal, duration, summarise, told_once
from fnll.sweep.events import Ending
from fnll.sweep.grid import PlannedRun, expand, shard
from fnll.sweep.hours import Speeds
from fnll.sweep.launchers import NAMES, check_store, launcher_of, shared_out, unknown_launcher
from fnll.sweep.needs import counted, needed
from fnll.sweep.paper_tables import is_small
from fnll.sweep.recall import Recall
from fnll.system.collecting import collecting_rarely
from fnll.system.files import remove_empty

DESCRIPTION = """A grid of runs, in Hydra's own syntax for multiruns. Finished runs are skipped, interrupted ones are
resumed, and a failed run does not stop the others, so the same command can be repeated at any time.

  fnll sweep method=fedavg,fedprox noise.rho=0.4,0.8 'seed=range(3)'
  fnll sweep experiment=rho_tau method=fedcorr
  fnll sweep 'method=glob(fed*,exclude=*_official)' --dry-run

experiment=NAME is a named grid from configs/experiment; command-line settings take precedence over it.
"""


def main(argv: Sequence[str]) -> int:
    """Expand the grid, run it, and report the outcome of every run."""
    args = _parser().parse_intermixed_args(list(argv))
    if args.jobs is not None:
        require_integer("--jobs", args.jobs, 1, "runs at a time on this machine")
    console = Console(highlight=False)
    grid = expand(args.words, args.config_dir)
    runs = shard(grid.runs, args.shard) if args.shard else grid.runs
    if not runs:
        raise UserError(f"--shard {args.shard}: there are only {len(grid.runs)} runs; use fewer parts")
    if args.dry_run:
        return _dry_run(console, runs, args.config_dir, grid.settings, args.jobs)
    runs_dir = store_of(compose(runs[0].words, args.config_dir).cfg)
    require(str(grid.settings["launcher"]) in NAMES, unknown_launcher(grid.settings["launcher"]))
    started, recall = time.monotonic(), Recall(args.config_dir)
    if absent := _absent(runs, recall):
        for line in absent:
            console.print(line, soft_wrap=True, markup=False)
        return 1
    new = not runs_dir.exists()
    check_store(runs_dir)
    try:
        chosen = launcher_of(grid.settings, runs, args.jobs, runs_dir)
    except UserError:
        if new:
            remove_empty(runs_dir)
        raise
    expected = _expected(runs, recall, runs_dir, grid.settings, args.jobs)
    with _sigterm_is_ctrl_c(), closing(chosen) as launcher:
        console.print(f"{len(runs)} runs in {runs_dir}, {launcher.manner}", soft_wrap=True, markup=False)
        with (Terminal if console.is_terminal else Plain)(console, len(runs), expected=expected) as display:
            bundles = bundled(runs, launcher.together, launcher.room)
            outcomes = Conductor(launcher, display, recall=recall.outcome).run(bundles)
    for line in summarise(outcomes, time.monotonic() - started):
        console.print(line, soft_wrap=True, markup=False)
    if args.report:
        _report(runs_dir, args.report)
    return int(any(outcome.kind is Ending.FAILED for outcome in outcomes.values()))


def _absent(runs: Sequence[PlannedRun], recall: Recall) -> list[str]:
    """What a paper's table lacks if none of its data are here: said once, and not by hundreds of failures."""
    words = runs[0].words
    if is_small(words) or not any(word.startswith(f"experiment={EXPERIMENT}") for word in words):
        return []
    with waiting(f"looking for the data of {len(runs)} runs ..."):
        data = needed(runs, recall.compose, recall.load)
    return [str(one) for one in data] if all(one.missing for one in data) else []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fnll sweep", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="SETTING=VALUES", help="Hydra overrides: a,b  range()  glob()")
    parser.add_argument("--jobs", "-j", type=int, metavar="N", help="runs at a time on this machine (default: cores)")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and their state, and do nothing")
    parser.add_argument("--shard", metavar="I/N", help="do the I-th of N parts of the grid")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write a report of the store to DIR in the end")
    parser.add_argument(
        "--config-dir", "-cd", type=Path, action="append", default=[], metavar="DIR", help="a folder of more configs"
    )
    return parser


def _expected(
    runs: Sequence[PlannedRun], recall: Recall, runs_dir: Path, settings: Mapping[str, Any], at_once: int | None
) -> float | None:
    """Seconds for all runs, if a dry run has measured runs like each of them."""
    speeds = Speeds(runs_dir)
    if settings["launcher"] != "local" or not speeds.known:
        return None
    processes, _, together = shared_out(settings, runs, at_once)
    try:
        rounds = {run: int(recall.compose(run.words).cfg.rounds) for run in runs}
    except UserError:  # the run itself says what is wrong
        return None
    return speeds.expected(rounds, together, processes)


def _hours(
    console: Console, runs: Mapping[PlannedRun, int], runs_dir: Path, settings: Mapping[str, Any], at_once: int | None
) -> None:
    """How long the runs will take that are not finished; kinds of runs that were never measured are, for a moment."""
    if settings["launcher"] != "local" or not runs:
        return
    speeds = Speeds(runs_dir)
    processes, _, together = shared_out(settings, list(runs), at_once)
    if any(speeds.of(run, together) is None for run in runs):
        with waiting("measuring how fast such runs are here (once; at most a minute) ..."):
            speeds.learn(runs, together)
    seconds = speeds.expected(runs, together, processes)
    cores = f"{processes} core{'s' if processes > 1 else ''}"
    if seconds is None:
        unknown = sum(speeds.of(run, together) is None for run in runs)
        text = f"{len(runs)} runs to do; {unknown} of them are not measured yet, --dry-run again measures more"
    else:
        text = f"{len(runs)} runs to do, about {duration(seconds)} on {cores}"
    console.print(text, soft_wrap=True, markup=False)


def _dry_run(
    console: Console,
    runs: Sequence[PlannedRun],
    config_dirs: Sequence[Path],
    settings: Mapping[str, Any],
    at_once: int | None,
) -> int:
    """What the grid is and needs, a line for each run (its state, its id, what it is), and how long it will take.

    Invalid runs count as failures, equal mistakes as one; runs whose data is missing are not gone through.
    """
    recall = Recall(config_dirs)
    mistakes: defaultdict[str, list[PlannedRun]] = defaultdict(list)
    to_do: dict[PlannedRun, int] = {}
    store = Path()
    console.print(counted(runs), soft_wrap=True, markup=False)
    with waiting(f"preparing {counted(runs).partition(':')[0]} ..."), collecting_rarely():
        data = needed(runs, recall.compose, recall.load)
    for one in data:
        console.print(str(one), soft_wrap=True, markup=False)
    without_data = {run for one in data if one.missing for run in one.runs}
    with console.status(f"preparing {len(runs)} runs ..."), collecting_rarely():
        for run in [run for run in runs if run not in without_data]:
            try:
                found = recall.status(run)
                console.print(f"{found.state:<10}  {found.run_id:<30}  {run}", soft_wrap=True, markup=False)
                if found.state in ("new", Status.UNFINISHED, Status.FAILED):
                    store, to_do[run] = found.store, found.rounds
            except UserError as error:
                mistakes[str(error)].append(run)
    for line in told_once("invalid", mistakes):
        console.print(line, soft_wrap=True, markup=False)
    _hours(console, to_do, store, settings, at_once)
    return int(bool(mistakes or without_data))


def _report(runs_dir: Path, out: Path) -> None:
    from fnll.cli import report

    report.main([str(runs_dir), "--out", str(out)])


@contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    """Let a batch system's signal end the workers and the display as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
