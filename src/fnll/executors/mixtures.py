"""Many two-component mixtures of numbers at once: what `two_component_gmm` does with each of them, up to rounding.

FedRN asks for three mixtures of some dozens of losses for every client in every round, and NumPy's calls take longer
than their arithmetic. So values of many clients are rows of one padded table, and a row leaves it when its fit is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fnll.local import Split
from fnll.tools.mixture import EMPTY, FLAT, TwoComponents, seeded

AT_ONCE = 1 << 15  # values in one table: more would not stay in the caches
TINY = 10 * np.finfo(np.float64).eps  # scikit-learn adds it to what belongs to a component
TIED = 1e-12  # of the largest value: means less apart than this are put in order by rounding alone
KMEANS_STEPS, KMEANS_TOL = 300, 1e-4  # those of scikit-learn's KMeans


class Table(NamedTuple):
    """Values of several mixtures, a row for each; rows are padded with zeros that weigh nothing."""

    rows: np.ndarray  # (m,): which of the mixtures these are
    x: np.ndarray  # (m, n)
    weigh: np.ndarray  # (m, n): 1 for a value, 0 for padding
    sizes: np.ndarray  # (m,)


class Components(NamedTuple):
    """The two components of each row, all (2, m)."""

    weights: np.ndarray
    means: np.ndarray
    variances: np.ndarray


def split_together(requests: Sequence[Split]) -> list[TwoComponents | None]:
    """The mixtures of requests with the same limits; None where `two_component_gmm` has to say.

    That is where there is none, and where rounding would decide which component is the low one.
    """
    if requests[0].max_iter < 1:
        return [None] * len(requests)
    values = [np.asarray(request.values.detach().cpu(), dtype=np.float64) for request in requests]
    found: dict[int, TwoComponents] = {}
    for block in _blocks(values):
        fitted = _fitted([values[i] for i in block], [requests[i] for i in block])
        found |= {block[row]: mixture for row, mixture in fitted.items()}
    return [found.get(i) for i in range(len(requests))]


def _blocks(values: Sequence[np.ndarray]) -> Iterator[list[int]]:
    """Mixtures of about equal size that are fitted in one table."""
    block: list[int] = []
    for i in sorted((i for i, own in enumerate(values) if _separable(own)), key=lambda i: len(values[i])):
        if block and (len(block) + 1) * len(values[i]) > AT_ONCE:
            yield block
            block = []
        block.append(i)
    if block:
        yield block


def _separable(values: np.ndarray) -> bool:
    """Whether there is something to separate."""
    if values.ndim != 1 or len(values) < 2:
        return False
    low, high = float(values.min()), float(values.max())
    return high - low > FLAT * max(1.0, abs(low), abs(high)) and math.isfinite(high - low)


def _fitted(values: Sequence[np.ndarray], requests: Sequence[Split]) -> dict[int, TwoComponents]:
    """The mixtures by row, without those in which a component came to nothing, or both to the same."""
    sizes = np.array([len(own) for own in values])
    inside = np.arange(sizes.max()) < sizes[:, None]
    x = np.zeros(inside.shape)
    x[inside] = np.concatenate(values)
    table = Table(np.arange(len(values)), x, inside.astype(np.float64), sizes)
    with np.errstate(all="ignore"):
        high = _two_means(table, [request.seed for request in requests])
        (weights, means, variances), high = _maximised(table, high, requests[0])
        sound = (variances.min(axis=0) > 0) & (weights.min(axis=0) >= EMPTY)
        sound &= np.abs(means[1] - means[0]) > TIED * np.abs(x).max(axis=1)
    order = np.where(means[0] <= means[1], [[0], [1]], [[1], [0]])
    centres, spread, mass = (
        torch.from_numpy(np.take_along_axis(part, order, axis=0).T) for part in (means, variances, weights)
    )
    posterior = torch.from_numpy(np.where(order[:1].T == 0, 1 - high, high))
    found = {}
    for k in np.flatnonzero(sound).tolist():
        own = posterior[k, : sizes[k]]
        found[k] = TwoComponents(own, own >= 0.5, centres[k], spread[k], mass[k])
    return found


def _two_means(table: Table, seeds: Sequence[int]) -> np.ndarray:
    """Which values scikit-learn's k-means, started once from `seeds`, has in its second cluster, (m, n) of 0 and 1."""
    weigh, sizes, rows = table.weigh, table.sizes, table.rows
    x = (table.x - (table.x.sum(axis=1) / sizes)[:, None]) * weigh
    tolerance = KMEANS_TOL * np.square(x).sum(axis=1) / sizes
    one, other = _plus_plus(x, weigh, sizes, seeds)
    found, before = np.zeros_like(x), np.zeros_like(x)
    for step in range(KMEANS_STEPS):
        second = _nearer(x, other, one) * weigh
        count, total = second.sum(axis=1), (x * second).sum(axis=1)
        centres = (x.sum(axis=1) - total) / (sizes - count), total / count
        centres = np.where(count < sizes, centres[0], one), np.where(count > 0, centres[1], other)
        moved = np.square(centres[0] - one) + np.square(centres[1] - other)
        one, other = centres
        over = (moved <= tolerance) | (step == KMEANS_STEPS - 1)
        stands = (second == before).all(axis=1) & (step > 0)
        found[rows[over]] = (_nearer(x, other, one) * weigh)[over]
        found[rows[stands]] = second[stands]
        if (go := ~(over | stands)).all():
            before = second
        elif not go.any():
            break
        else:
            before, rows, x, weigh, sizes, tolerance, one, other = (
                part[go] for part in (second, rows, x, weigh, sizes, tolerance, one, other)
            )
    return found


def _plus_plus(
    x: np.ndarray, weigh: np.ndarray, sizes: np.ndarray, seeds: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The first centres of k-means++: a random value, and the better of two that are likely to be far from it."""
    draws = np.array([seeded(seed % 2**32).random_sample(3) for seed in seeds])
    every, last = np.arange(len(x)), sizes - 1
    one = x[every, np.minimum((draws[:, 0] * sizes).astype(np.int64), last)]
    far = np.square(x - one[:, None]) * weigh
    reached = far.cumsum(axis=1)
    tried = []
    for draw in draws.T[1:]:
        at = np.minimum((reached < (draw * reached[:, -1])[:, None]).sum(axis=1), last)
        other = x[every, at]
        tried.append((np.minimum(far, np.square(x - other[:, None]) * weigh).sum(axis=1), other))
    (left, first), (right, second) = tried
    return one, np.where(right < left, second, first)


def _nearer(x: np.ndarray, this: np.ndarray, that: np.ndarray) -> np.ndarray:
    return np.square(x - this[:, None]) < np.square(x - that[:, None])


def _maximised(table: Table, high: np.ndarray, limits: Split) -> tuple[Components, np.ndarray]:
    """Expectation maximisation from hard shares of the second component; its posterior comes with the components."""
    m = len(table.rows)
    found, posterior = Components(*(np.empty((2, m)) for _ in range(3))), np.empty_like(table.x)
    components, bound = _moments(table, high, limits.reg_covar), np.full(m, -np.inf)
    for step in range(limits.max_iter):
        before = bound
        bound, high = _expected(table, components)
        components = _moments(table, high, limits.reg_covar)
        over = (np.abs(bound - before) < limits.tol) | (step == limits.max_iter - 1)
        if not over.any():
            continue
        ended = table.rows[over]
        for whole, part in zip(found, components, strict=True):
            whole[:, ended] = part[:, over]
        posterior[ended] = _expected(table, components)[1][over]
        if over.all():
            break
        table, bound = Table(*(part[~over] for part in table)), bound[~over]
        components = Components(*(part[:, ~over] for part in components))
    return found, posterior


def _moments(table: Table, high: np.ndarray, reg_covar: float) -> Components:
    """The M step: how much belongs to each component, as a share, and its mean and variance."""
    shares = np.stack([table.weigh - high, high])
    counts = shares.sum(axis=2) + TINY
    means = (shares * table.x).sum(axis=2) / counts
    variances = (shares * np.square(table.x - means[:, :, None])).sum(axis=2) / counts + reg_covar
    return Components(counts / counts.sum(axis=0), means, variances)


def _expected(table: Table, components: Components) -> tuple[np.ndarray, np.ndarray]:
    """The E step: the mean log-likelihood of each row, and the posterior of the second component."""
    scale = 1 / np.sqrt(components.variances)
    offset = np.log(scale) + np.log(components.weights) - 0.5 * math.log(2 * math.pi)
    away = table.x * scale[:, :, None] - (components.means * scale)[:, :, None]
    one, other = offset[:, :, None] - 0.5 * np.square(away)
    small = np.exp(-np.abs(other - one))
    likelihood = np.maximum(one, other) + np.log1p(small)
    high = np.where(other > one, 1.0, small) / (1 + small)
    return (likelihood * table.weigh).sum(axis=1) / table.sizes, high * table.weigh
