"""Which runs one process advances side by side."""

import pytest

from fnll.sweep.bundles import bundled, one_by_one
from fnll.sweep.grid import PlannedRun


def grid(methods, seeds):
    """A sweep's runs, seeds slowest as `fnll sweep` has them."""
    return [PlannedRun((f"seed={s}", f"method={m}"), m, seed=str(s)) for s in range(seeds) for m in methods]


def told(bundles):
    return [[f"{run.method}{run.seed}" for run in bundle] for bundle in bundles]


def test_a_bundle_holds_runs_that_train_alike_and_the_first_seeds_come_first():
    assert told(bundled(grid("ab", 6), most=3, processes=2)) == [
        ["a0", "a1", "a2"],
        ["b0", "b1", "b2"],
        ["a3", "a4", "a5"],
        ["b3", "b4", "b5"],
    ]


def test_noise_and_partition_may_differ_in_a_bundle_and_the_network_may_not():
    words = [("noise=none",), ("noise=ramp", "partition=shards"), ("model=mlp",), ("+local.lr=0.2",)]
    runs = [PlannedRun(("method=a", *more), "a") for more in words]
    assert [len(bundle) for bundle in bundled(runs, most=10, processes=1)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("methods", "seeds", "most", "processes", "sizes"),
    [
        ("abcde", 10, 10, 2, [5] * 10),  # three bundles or more for each process, of enough runs to fill a step
        ("a", 100, 10, 2, [10] * 10),
        ("ab", 3, 10, 2, [3, 3]),
        ("a", 5, 10, 2, [2, 3]),  # nobody is idle
        ("a", 2, 10, 8, [1, 1]),
        ("abc", 1, 10, 2, [1, 1, 1]),
        ("ab", 2, 1, 2, [1, 1, 1, 1]),  # sweep.together=1
    ],
)
def test_bundles_are_full_and_shared_out(methods, seeds, most, processes, sizes):
    runs = grid(methods, seeds)
    bundles = bundled(runs, most, processes)
    assert [len(bundle) for bundle in bundles] == sizes
    assert {run for bundle in bundles for run in bundle} == set(runs)


def test_one_by_one_keeps_the_plan():
    assert told(one_by_one(grid("ab", 1))) == [["a0"], ["b0"]]
