"""How labels are corrupted, client by client. The released codes' own draws are in `noise_official`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fnll.errors import UserError, require, require_between
from fnll.scenario.scenario import Dataset, NoisyLabels
from fnll.seeding import numpy_rng

RHO = "ρ is the probability that a client is noisy"
TAU = "τ is the lowest noise level of a noisy client"


@dataclass(frozen=True)
class NoNoise:
    """Labels as published, of a data set whose published labels are clean."""

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        clean_labels(dataset, "none")
        return NoisyLabels(dataset.labels.numpy().copy(), np.zeros(len(shards)))


@dataclass(frozen=True)
class RhoTau:
    """FedCorr's noise model, equation 4: a client is noisy with probability ρ, and then its level is μ ~ U(τ, 1).

    A share μ of a noisy client's samples, chosen uniformly, gets a label drawn uniformly from the pool. The true label
    may be drawn again, so the realised level is about μ (1 - 1/M).
    """

    rho: float
    tau: float
    count: str  # exact: floor(μ n) samples (paper); bernoulli: each sample with probability μ (released code)
    label_pool: str  # all: the data set's classes (paper); ten: classes 0 to 9 whatever the data set (released code)

    def __post_init__(self) -> None:
        require_between("noise.rho", self.rho, 0, 1, RHO)
        require_between("noise.tau", self.tau, 0, 1, TAU)
        require(self.count in ("exact", "bernoulli"), f"noise.count must be exact or bernoulli, got {self.count!r}")
        require(self.label_pool in ("all", "ten"), f"noise.label_pool must be all or ten, got {self.label_pool!r}")

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        observed = clean_labels(dataset, "rho_tau").copy()
        pool = pool_size(self.label_pool, dataset)
        mu = self.levels(len(shards), seed)
        for k in np.flatnonzero(mu > 0):
            rng = numpy_rng(seed, "client", int(k))
            n = len(shards[k])
            if self.count == "exact":
                chosen = rng.choice(n, whole(mu[k] * n), replace=False)
            else:
                chosen = np.flatnonzero(rng.random(n) < mu[k])
            observed[shards[k][chosen]] = rng.integers(pool, size=len(chosen))
        return NoisyLabels(observed, mu)

    def levels(self, num_clients: int, seed: int) -> np.ndarray:
        """μ, (clients,): 0 for clean clients."""
        rng = numpy_rng(seed, "levels")
        noisy = rng.random(num_clients) < self.rho
        return noisy * rng.uniform(self.tau, 1, num_clients)


def clean_labels(dataset: Dataset, noise: str) -> np.ndarray:
    """The labels to corrupt; refused where they are noisy already."""
    if dataset.native_noise:
        raise UserError(
            f"noise={noise} needs clean labels, and those of {dataset.name} are noisy as published; type noise=native"
        )
    return dataset.labels.numpy()


def pool_size(label_pool: str, dataset: Dataset) -> int:
    """How many classes new labels are drawn from."""
    if label_pool == "all":
        return dataset.num_classes
    if dataset.num_classes < 10:
        raise UserError(
            f"noise.label_pool=ten draws labels 0 to 9, and {dataset.name} has {dataset.num_classes} classes; "
            "type noise.label_pool=all"
        )
    return 10


def whole(x: float) -> int:
    """The floor of `x`, safe against products such as 500 * 0.006 that land just below a whole number."""
    return int(np.floor(x + 1e-9))
