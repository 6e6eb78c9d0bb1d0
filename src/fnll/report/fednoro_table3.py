"""FedNoRo's table 3 from a run's records: how well mixtures with many seeds find the noisy clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fnll.errors import UserError
from fnll.harness.diagnostics import detection
from fnll.harness.integrity import DIAGNOSTICS
from fnll.methods.fednoro_detection import Covariance, noisy_rows
from fnll.report.folders import read_lines, read_run
from fnll.system.files import read_json
from fnll.tools.mixture import seeded

SEEDS = range(10_000)  # as many as in the paper


class Rates(NamedTuple):
    """Means over repetitions; a repetition that finds nobody has precision 0."""

    recall: float
    precision: float
    matching: float  # MR: the share of repetitions that find exactly the noisy clients


def rates(truth: AbstractSet[int], found: Iterable[AbstractSet[int]]) -> Rates:
    """Re, Pr and MR of several answers to the same question."""
    scores = [detection(set(truth), set(answer)) for answer in found]
    names = ("detect/recall", "detect/precision", "detect/exact")
    return Rates(*(float(np.mean([score[name] for score in scores])) for name in names))


def repeat_detection(
    indicator: Sequence[Sequence[float] | None] | Tensor,
    truth: AbstractSet[int],
    seeds: Iterable[int] = SEEDS,
    covariance: Covariance = "full",
) -> Rates:
    """One mixture per seed over an indicator table, a row per client; clients without data have no row (None)."""
    known = [k for k, row in enumerate(indicator) if row is not None]
    table = torch.stack([torch.as_tensor(indicator[k], dtype=torch.float64) for k in known])
    found: dict[tuple[int, int], frozenset[int]] = {}
    answers = []
    for seed, start in starts(table, seeds):
        if start not in found:
            found[start] = noisy_rows(table, "paper", covariance, seed)
        answers.append({known[row] for row in found[start]})
    return rates(truth, answers)


def starts(table: Tensor, seeds: Iterable[int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Each seed with the two rows that scikit-learn's k-means starts from, which is all that a seed decides.

    Of a mixture's 6 ms nothing is left for seeds that start from the same rows, and twenty clients have 380 pairs. The
    rows are k-means++'s: a random one, and the better of two that are likely to be far from it.
    """
    points = table.numpy() - table.numpy().mean(axis=0)
    last = len(points) - 1

    @cache
    def far(row: int) -> np.ndarray:
        return np.square(points - points[row]).sum(axis=1)

    @cache
    def left(one: int, other: int) -> float:  # to be explained by further rows
        return float(np.minimum(far(one), far(other)).sum())

    for seed in seeds:
        where, *draws = seeded(seed % 2**32).random_sample(3)
        one = min(int(where * len(points)), last)
        reached = far(one).cumsum()
        tried = [min(int(np.searchsorted(reached, draw * reached[-1])), last) for draw in draws]
        yield seed, (one, min(tried, key=lambda other: left(one, other)))


def table3(run: Path, seeds: Iterable[int] = SEEDS) -> Rates:
    """The row of table 3 that belongs to the run in folder `run`, against the clients that hold a wrong label."""
    recorded = [row["value"] for row in read_lines(run, DIAGNOSTICS) if row["name"] == "indicator"]
    if not recorded:
        raise UserError(f"run {run.name} recorded no indicator; only FedNoRo does, once its warm-up is over")
    realised = read_json(run / "manifest.json")["realised"]
    if None in realised:
        raise UserError(f"run {run.name}: nobody knows the true labels of its data set, so nothing can be scored")
    noisy = {k for k, level in enumerate(realised) if level > 0}
    covariance = read_run(run).config["method.covariance"]  # the mixture is the run's own, but for its seed
    return repeat_detection(recorded[-1], noisy, seeds, covariance)
