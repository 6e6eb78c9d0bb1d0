"""Twenty small runs by `fnll sweep`, one and two at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from fnll.bench.measure import Stopwatch, Variant, take_turns
from fnll.bench.result import Claim, SuiteResult, faster
from fnll.errors import UserError
from fnll.system.files import temporary_folder

GRID = ("rounds=10", "seed=range(20)")


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """FedAvg on digits, 10 rounds, 20 seeds; `words` may change that. Starting Python counts."""
    words = (*GRID, *words)
    variants = {"1 job": sweep(words, 1), "2 jobs": sweep(words, 2)}
    timings = take_turns(variants, repeat)
    one, two = timings
    return SuiteResult("grid", words, timings, (Claim(f"{two} / {one}", faster(timings, two, one), at_least=1.8),))


def sweep(words: Sequence[str], jobs: int) -> Variant:
    """A sweep in processes of its own, into a store that is gone afterwards."""

    def variant(watch: Stopwatch) -> int:
        with temporary_folder() as runs_dir:
            command = [sys.executable, "-m", "fnll", "sweep", *words, f"runs_dir={runs_dir}", "--jobs", str(jobs)]
            with watch:
                done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise UserError(f"the sweep of the suite grid failed:\n{done.stdout}{done.stderr}")
        return 0

    return variant
