"""FedNoRo's noise, algorithm 1: heterogeneous instance-dependent noise (H-IDN), and its random counterpart.

Exactly floor(ρK) clients are noisy, with levels η ~ U(η^l, η^u). Under H-IDN each noisy client has an annotator of its
own, which mislabels the samples that it finds hard, as the classes that it takes them for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from fnll.errors import require
from fnll.scenario.noise.annotator import Annotator, Task, probabilities
from fnll.scenario.noise.models import clean_labels, require_two_classes, whole
from fnll.scenario.scenario import Dataset, NoisyLabels
from fnll.seeding import derive, numpy_rng
from fnll.settings import check_fields

EPSILON = 1e-6  # added to the misclassification probabilities, so that a saturated annotator can still be followed

NoisyShare = Annotated[float, Field(ge=0, le=1, description="ρ is the share of noisy clients")]
LowestLevel = Annotated[float, Field(ge=0, le=1, description="η^l is the lowest noise level of a noisy client")]
HighestLevel = Annotated[float, Field(ge=0, le=1, description="η^u is the highest noise level of a noisy client")]

Rng = np.random.Generator | np.random.RandomState


@dataclass(frozen=True)
class HIdn:
    """H-IDN: floor(η n) samples of a noisy client are mislabelled, so the realised level is the nominal one."""

    rho: NoisyShare
    eta_low: LowestLevel
    eta_high: HighestLevel
    annotator: Annotator

    def __post_init__(self) -> None:
        check_fields(self, "noise")
        require(isinstance(self.annotator, Annotator), "noise.annotator is a group of settings; leave it as it is")
        require_ordered_levels(self.eta_low, self.eta_high)

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        clean = clean_labels(dataset, "h_idn")
        require_two_classes(dataset)
        eta = levels(self.rho, self.eta_low, self.eta_high, len(shards), seed)
        counts = {k: whole(eta[k] * len(shard)) for k, shard in enumerate(shards)}
        noisy = [k for k, count in counts.items() if count]
        annotated = soft_labels(self.annotator, dataset, {k: shards[k] for k in noisy}, seed)
        observed = clean.copy()
        for k, p in annotated.items():
            observed[shards[k]] = flip(p, clean[shards[k]], counts[k], numpy_rng(seed, "client", k))
        return NoisyLabels(observed, eta)


@dataclass(frozen=True)
class HRandom:
    """`n_type=random` of FedNoRo's code: H-IDN's clients and levels, but any sample and any label.

    Each sample of a noisy client gets, with probability η, a label drawn uniformly from all classes, its own included.
    """

    rho: NoisyShare
    eta_low: LowestLevel
    eta_high: HighestLevel

    def __post_init__(self) -> None:
        check_fields(self, "noise")
        require_ordered_levels(self.eta_low, self.eta_high)

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        observed = clean_labels(dataset, "h_random").copy()
        eta = levels(self.rho, self.eta_low, self.eta_high, len(shards), seed)
        for k in np.flatnonzero(eta > 0):
            rng = numpy_rng(seed, "client", int(k))
            chosen = shards[k][rng.random(len(shards[k])) < eta[k]]
            observed[chosen] = rng.integers(dataset.num_classes, size=len(chosen))
        return NoisyLabels(observed, eta)


def flip(p: np.ndarray, labels: np.ndarray, count: int, rng: Rng, epsilon: float = EPSILON) -> np.ndarray:
    """Labels of which exactly `count` are wrong, given the annotator's probabilities `p` (n, classes).

    The samples are chosen without replacement by how likely the annotator gets them wrong; the label is never kept.
    """
    chosen = rng.choice(len(labels), count, replace=False, p=selection(p, labels, epsilon))
    cdf = np.cumsum(flip_distribution(p[chosen], labels[chosen]), axis=1)
    cdf /= cdf[:, -1:]
    observed = labels.copy()
    observed[chosen] = (cdf <= rng.random(count)[:, None]).sum(1)
    return observed


def wrong_probability(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Equation 1: p̃(x) = 1 - p(Y = y | x), (n,)."""
    return 1 - p[np.arange(len(labels)), labels]


def selection(p: np.ndarray, labels: np.ndarray, epsilon: float = EPSILON) -> np.ndarray:
    """The probability that a sample is chosen first, in proportion to p̃ + ε."""
    wrong = wrong_probability(p, labels) + epsilon
    return wrong / wrong.sum()


def flip_distribution(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """p(Y | x) over the classes other than the true one, (n, classes); uniform where the annotator is certain."""
    others = np.ones_like(p)
    others[np.arange(len(labels)), labels] = 0
    wrong = p * others
    wrong = np.where(wrong.sum(1, keepdims=True) > 0, wrong, others)
    return wrong / wrong.sum(1, keepdims=True)


def levels(rho: float, low: float, high: float, num_clients: int, seed: int) -> np.ndarray:
    """η, (clients,): 0 for all but floor(ρK) random clients."""
    rng = numpy_rng(seed, "levels")
    eta = rng.uniform(low, high, num_clients)
    clean = rng.permutation(num_clients)[whole(rho * num_clients) :]
    eta[clean] = 0
    return eta


def soft_labels(
    annotator: Annotator, dataset: Dataset, shards: dict[int, np.ndarray], seed: int
) -> dict[int, np.ndarray]:
    """p(Y|x) of every client's samples by an annotator of its own."""
    labels = dataset.labels.numpy()
    tasks = [
        Task(annotator, shard, labels[shard], dataset.num_classes, dataset.transform, derive(seed, "annotator", k))
        for k, shard in shards.items()
    ]
    return dict(zip(shards, probabilities(dataset, tasks), strict=True))


def require_ordered_levels(low: float, high: float) -> None:
    """Demand that the lowest level is not above the highest."""
    require(
        low <= high,
        f"noise.eta_low must be in [0, {high:g}], got {low}; η^l is the lowest noise level, noise.eta_high the highest",
    )
