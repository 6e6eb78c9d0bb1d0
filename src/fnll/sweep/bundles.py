"""Which runs of a sweep one process advances side by side: settled before anything starts.

A bundle's runs begin together and nothing joins them, so its numbers do not depend on which process was free when.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from fnll.sweep.grid import PlannedRun

Bundle = tuple[PlannedRun, ...]

TRAINING = ("dataset", "model", "local", "method", "precision", "executor")  # settings that decide how clients train
ENOUGH = 5  # runs that fill stacked steps: of ten clients each, fifty lanes
SHARE = 3  # bundles for each process, if there are runs enough: the last ones should end at about the same time


def one_by_one(runs: Sequence[PlannedRun]) -> list[Bundle]:
    """Every run by itself."""
    return [(run,) for run in runs]


def bundled(runs: Sequence[PlannedRun], most: int, processes: int) -> list[Bundle]:
    """The runs in bundles of at most `most`, each of runs whose clients train alike, the start of the plan first."""
    if most == 1:
        return one_by_one(runs)
    kinds: dict[tuple[str, ...], list[PlannedRun]] = {}
    for run in runs:
        kinds.setdefault(tuple(w for w in run.words if w.lstrip("+~").startswith(TRAINING)), []).append(run)
    size = min(most, max(ENOUGH, math.ceil(len(runs) / (SHARE * processes))))
    parts = [_parted(kind, math.ceil(len(kind) / size)) for kind in kinds.values()]
    while sum(map(len, parts)) < min(processes, len(runs)):  # nobody should be idle
        largest = max(range(len(parts)), key=lambda i: len(parts[i][0]))
        whole = [run for part in parts[largest] for run in part]
        parts[largest] = _parted(whole, len(parts[largest]) + 1)
    return [kind[i] for i in range(max(map(len, parts), default=0)) for kind in parts if i < len(kind)]


def _parted(runs: Sequence[PlannedRun], count: int) -> list[Bundle]:
    """`runs` in `count` parts of nearly equal size, in order."""
    ends = [len(runs) * i // count for i in range(count + 1)]
    return [tuple(runs[start:end]) for start, end in itertools.pairwise(ends)]
