"""Two-component Gaussian mixtures that cannot be talked into nonsense: the low component is the clean one."""

from __future__ import annotations

import logging
import math
import threading
import warnings
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import sklearn
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from fnll.system.notices import warn_once

log = logging.getLogger(__name__)

FLAT = 1e-9  # a spread below this share of the values' size (at least 1) is none
_own = threading.local()  # a generator for each thread

EMPTY = 1e-6  # a component with a smaller weight has no members


@dataclass(frozen=True)
class TwoComponents:
    """A fitted mixture; entry 0 of means, variances and weights is the low component, entry 1 the high one.

    `degenerate` says why there was nothing to separate: then every value is low with posterior 1, the means are both
    that of all values, the variances 0 and the weights (1, 0).
    """

    posterior: Tensor  # (n,) float64: probability of the low component
    low: Tensor  # (n,) bool: hard assignment to the low component
    means: Tensor  # (2,) or (2, d)
    variances: Tensor  # the same shape: the diagonal of the covariance
    weights: Tensor  # (2,)
    degenerate: str | None = None


def two_component_gmm(
    values: Tensor | np.ndarray,
    *,
    seed: int,
    reg_covar: float = 1e-6,
    tol: float = 1e-3,
    max_iter: int = 100,
    covariance: Literal["full", "diag"] = "full",
    order: Literal["sum", "norm"] = "sum",
) -> TwoComponents:
    """Fit scikit-learn's two-component mixture to numbers (n,) or vectors (n, d).

    The low component is the one whose mean has the smaller sum (for numbers: the smaller mean) or Euclidean norm.
    Constant values, fewer than two, and a component without members would make scikit-learn fail or return an empty
    component at 0, which "low is clean" would turn into "everything is noisy"; they give all low instead. A value that
    is not finite counts as the largest finite one of its column (−inf: as the smallest).
    """
    points = _finite(np.asarray(torch.as_tensor(values).detach().cpu(), dtype=np.float64))
    table = points if points.ndim == 2 else points[:, None]
    reason = _nothing_to_separate(table)
    if reason is not None:
        return _all_low(points, reason)
    limits = Limits(seed % 2**32, reg_covar, tol, max_iter)
    try:
        lean = _fitted_numbers(table, limits) if table.shape[1] == 1 and covariance == "full" else None
        fitted = lean or _fitted(table, limits, covariance)
    except ValueError as error:  # covariances that are singular in spite of reg_covar
        return _all_low(points, f"the mixture cannot be fitted ({str(error).splitlines()[0]})")
    if fitted.weights.min() < EMPTY:
        return _all_low(points, "one component is empty")
    return _ordered(fitted, points.shape[1:], order)


def _finite(points: np.ndarray) -> np.ndarray:
    """`points` with what is not finite replaced column by column; untouched where a column has no finite value."""
    finite = np.isfinite(points)
    if finite.all():
        return points
    warn_once(log, "values that are not finite are replaced by the largest finite one before a mixture is fitted")
    known = finite.any(axis=0)
    high = np.where(finite, points, -np.inf).max(axis=0, initial=-np.inf)
    low = np.where(finite, points, np.inf).min(axis=0, initial=np.inf)
    return np.where(finite | ~known, points, np.where(points == -np.inf, low, high))


def _nothing_to_separate(table: np.ndarray) -> str | None:
    if len(table) < 2:
        return "there are fewer than two values"
    if not np.isfinite(table).all():
        return "there is no finite value"
    if np.ptp(table, axis=0).max(initial=0.0) <= FLAT * max(1.0, float(np.abs(table).max(initial=0.0))):
        return "all values are equal"
    return None


def _all_low(points: np.ndarray, reason: str) -> TwoComponents:
    warn_once(log, f"a mixture separates nothing because {reason}; everything counts as clean")
    centre = torch.as_tensor(points.mean(axis=0)) if len(points) else torch.zeros(points.shape[1:])
    means = torch.stack([centre, centre]).double()
    return TwoComponents(
        posterior=torch.ones(len(points), dtype=torch.float64),
        low=torch.ones(len(points), dtype=torch.bool),
        means=means,
        variances=torch.zeros_like(means),
        weights=torch.tensor([1.0, 0.0], dtype=torch.float64),
        degenerate=reason,
    )


class Limits(NamedTuple):
    """How a mixture is fitted."""

    seed: int
    reg_covar: float
    tol: float
    max_iter: int


class Fitted(NamedTuple):
    """A mixture in scikit-learn's order of components."""

    weights: np.ndarray  # (2,)
    means: np.ndarray  # (2, d)
    variances: np.ndarray  # (2, d)
    posterior: np.ndarray  # (n, 2)


def _fitted(table: np.ndarray, limits: Limits, covariance: str) -> Fitted:
    seed, reg_covar, tol, max_iter = limits
    model = GaussianMixture(
        2, covariance_type=covariance, reg_covar=reg_covar, tol=tol, max_iter=max_iter, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the reference codes use what they get, too
        model.fit(table)
    found = model.covariances_
    variances = np.diagonal(found, axis1=1, axis2=2) if found.ndim == 3 else found
    return Fitted(model.weights_, model.means_, variances, model.predict_proba(table))


def _fitted_numbers(table: np.ndarray, limits: Limits) -> Fitted | None:
    """The same for numbers (n, 1), to the bit, in a third of the time; None: leave it to scikit-learn.

    A client has some dozens of losses, and scikit-learn takes longer over looking at their type than over arithmetic;
    FedRN fits three such mixtures for each client in each round. Its k-means stays the start.
    """
    values = table[:, 0]
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct values than clusters
        start = KMeans(2, n_init=1, random_state=seeded(limits.seed)).fit(table).labels_
    shares = np.zeros((len(values), 2))
    shares[np.arange(len(values)), start] = 1
    counts, means, variances = _moments(table, shares, limits.reg_covar)
    weights, bound = counts / len(values), -math.inf
    for _ in range(limits.max_iter):
        if not variances.min() > 0:
            return None  # it says why in words
        before = bound
        bound, logs = _expected(values, weights, means, variances)
        counts, means, variances = _moments(table, np.exp(logs), limits.reg_covar)
        weights = counts / counts.sum()
        if abs(bound - before) < limits.tol:
            break
    if not variances.min() > 0:
        return None
    posterior = np.exp(_expected(values, weights, means, variances)[1])
    return Fitted(weights, means[:, None], variances[:, None], posterior)


def seeded(seed: int) -> np.random.RandomState:
    """NumPy's old generator, as `RandomState(seed)` makes it: making one takes fifty times as long as seeding one."""
    if not hasattr(_own, "generator"):
        _own.generator = np.random.RandomState(0)
    generator: np.random.RandomState = _own.generator
    generator.seed(seed)
    return generator


def _moments(table: np.ndarray, shares: np.ndarray, reg_covar: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The M step: how much belongs to each component, and its mean and variance."""
    counts = shares.sum(axis=0) + 10 * np.finfo(np.float64).eps
    means = (shares.T @ table)[:, 0] / counts
    away = [table - mean for mean in means]
    squares = np.array([((shares[:, k] * part.T) @ part)[0, 0] for k, part in enumerate(away)])
    return counts, means, squares / counts + reg_covar


def _expected(
    values: np.ndarray, weights: np.ndarray, means: np.ndarray, variances: np.ndarray
) -> tuple[float, np.ndarray]:
    """The E step: the mean log-likelihood, and the logarithms of the posterior, (n, 2)."""
    scale = 1 / np.sqrt(variances)
    distances = np.square(values[:, None] * scale - means * scale)
    joint = -0.5 * (math.log(2 * math.pi) + distances) + np.log(scale) + np.log(weights)
    one, other = joint.T
    top = np.maximum(one, other)
    beside = np.log1p(np.exp(np.minimum(one, other) - top))
    total = np.where(one == other, math.log(2), beside) + top
    return float(total.mean()), joint - total[:, None]


def _ordered(fitted: Fitted, shape: tuple[int, ...], order: str) -> TwoComponents:
    means, posterior = fitted.means, fitted.posterior
    size = means.sum(axis=1) if order == "sum" else np.linalg.norm(means, axis=1)
    low = int(size.argmin())
    components = [low, 1 - low]
    return TwoComponents(
        posterior=torch.from_numpy(posterior[:, low].copy()),
        low=torch.from_numpy(posterior.argmax(axis=1) == low),
        means=torch.from_numpy(means[components].reshape(2, *shape)),
        variances=torch.from_numpy(fitted.variances[components].reshape(2, *shape)),
        weights=torch.from_numpy(fitted.weights[components]),
    )
