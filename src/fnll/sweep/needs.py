"""What a grid needs before it can start: its data, and where they go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig

from fnll.errors import UserError
from fnll.harness.config import Request
from fnll.sweep.grid import PlannedRun

DECIDES = ("experiment", "paper", "dataset")  # words, and settings below them, that say what data a run is on


@dataclass(frozen=True)
class Needed:
    """One data set, and the runs that are on it."""

    name: str  # the choice of `dataset`
    runs: tuple[PlannedRun, ...]
    missing: str  # what is wrong with it and what to do; empty if it is there

    def __str__(self) -> str:
        number = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        return (
            f"data: {self.name} is here, for {number}"
            if not self.missing
            else f"data is missing, for {number}. {self.missing}"
        )


def needed(
    runs: Sequence[PlannedRun], compose: Callable[[Sequence[str]], Request], load: Callable[[DictConfig], object]
) -> list[Needed]:
    """The data of a grid: found by looking, once for all runs that say the same about it."""
    alike: defaultdict[tuple[str, ...], list[PlannedRun]] = defaultdict(list)
    for run in runs:
        alike[tuple(word for word in run.words if word.split("=")[0].split(".")[0] in DECIDES)].append(run)
    by_name: defaultdict[tuple[str, str], list[PlannedRun]] = defaultdict(list)
    for some in alike.values():
        request = compose(some[0].words)
        by_name[request.choices["dataset"], _missing(request, load)] += some
    return [Needed(name, tuple(some), missing) for (name, missing), some in by_name.items()]


def _missing(request: Request, load: Callable[[DictConfig], object]) -> str:
    try:
        load(request.cfg.dataset)
    except UserError as error:
        return str(error)
    return ""


def counted(runs: Sequence[PlannedRun]) -> str:
    """`315 runs: 63 cells, 5 seeds`."""
    cells, seeds = {(run.method, run.label) for run in runs}, {run.seed for run in runs}
    if len(seeds) < 2:
        return "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{len(runs)} runs: {len(cells)} cell{'s' if len(cells) > 1 else ''}, {len(seeds)} seeds"
