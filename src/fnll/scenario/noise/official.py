"""Noise exactly as the released codes of FedCorr and FedRN draw it, given their partition and seed (`legacy_seed`)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from fnll.scenario.legacy import LegacySeed, legacy_rng, legacy_seed
from fnll.scenario.noise.models import (
    High,
    Kind,
    LabelPool,
    Low,
    Rho,
    Tau,
    clean_labels,
    groups,
    pool_size,
    require_rising,
    require_two_classes,
)
from fnll.scenario.scenario import Dataset, NoisyLabels
from fnll.settings import check_fields


@dataclass(frozen=True)
class RhoTauOfficial:
    """FedCorr's noise as released: each sample of a noisy client is chosen with probability μ, independently.

    Draws: who is noisy, a level for every client, then per noisy client one number per sample and the new labels. The
    released code draws these from classes 0 to 9 whatever the data set (`label_pool: ten`).
    """

    rho: Rho
    tau: Tau
    label_pool: LabelPool
    legacy_seed: LegacySeed

    def __post_init__(self) -> None:
        check_fields(self, "noise")

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        observed = clean_labels(dataset, "rho_tau_official").copy()
        pool = pool_size(self.label_pool, dataset)
        rng = legacy_rng(self.legacy_seed, seed)
        mu = self.levels(len(shards), rng)
        for k in np.flatnonzero(mu > 0):
            chosen = shards[k][rng.rand(len(shards[k])) <= mu[k]]
            observed[chosen] = rng.randint(0, pool, len(chosen))
        return NoisyLabels(observed, mu)

    def levels(self, num_clients: int, rng: np.random.RandomState) -> np.ndarray:
        """μ, (clients,): 0 for clean clients."""
        noisy = rng.binomial(1, self.rho, num_clients)
        return noisy * ((1 - self.tau) * rng.rand(num_clients) + self.tau)


@dataclass(frozen=True)
class RampOfficial:
    """FedRN's ramp as released: rate_i = low + i (high - low) / G in a group of G clients, so `high` is never reached.

    Python's generator is seeded anew for every client, so clients of equal size corrupt the same positions of theirs.
    Asymmetric is y to (y - 1) mod C. Products such as 500 * 0.006 are truncated as they come.
    On shards and Dirichlet clients the draw is the released code's; on `iid_official` it is not, since that code copies
    an IID client's Python set before listing it, which changes its order (at rate 0.2, 8 % of the chosen samples).
    """

    kind: Kind
    low: Low
    high: High
    legacy_seed: LegacySeed

    def __post_init__(self) -> None:
        check_fields(self, "noise")
        require_rising(self.low, self.high)

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        observed = clean_labels(dataset, "ramp_official").copy()
        require_two_classes(dataset)
        rates = self.rates(len(shards))
        kinds = [kind for kind, size in groups(self.kind, len(shards)) for _ in range(size)]
        for kind, rate, shard in zip(kinds, rates, shards, strict=True):
            rng = random.Random(legacy_seed(self.legacy_seed, seed))
            order = shard.tolist()
            rng.shuffle(order)
            chosen = order[: int(len(order) * rate)]
            if kind == "asymmetric":
                observed[chosen] -= 1
            else:
                for i in chosen:
                    other = rng.randrange(dataset.num_classes - 1)
                    observed[i] = other + (other >= observed[i])
        return NoisyLabels(observed % dataset.num_classes, rates)

    def rates(self, num_clients: int) -> np.ndarray:
        """The rate of every client."""
        sizes = [size for _, size in groups(self.kind, num_clients)]
        return np.concatenate([np.arange(size) * ((self.high - self.low) / max(size, 1)) + self.low for size in sizes])
