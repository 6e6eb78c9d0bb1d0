"""FedNoRo's noise with exactly the draws of its released code, given its partition and its seed (`legacy_seed`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field

from fnll.errors import UserError, require
from fnll.scenario.legacy import LegacySeed, legacy_rng
from fnll.scenario.noise.annotator import Annotator
from fnll.scenario.noise.h_idn import (
    HighestLevel,
    LowestLevel,
    NoisyShare,
    flip,
    require_ordered_levels,
    soft_labels,
    wrong_probability,
)
from fnll.scenario.noise.models import clean_labels, require_two_classes
from fnll.scenario.scenario import Dataset, NoisyLabels
from fnll.settings import check_fields


@dataclass(frozen=True)
class HIdnOfficial:
    """H-IDN as released, where no annotator is trained: p(Y|x) of all samples is read from a CSV file.

    `soft_labels` is such a file: a column of ids, then one column per class, its rows in the order of the training set.
    That of ICH is data/ICH_softlabel.csv in FedNoRo's repository, beside train_ICH.csv. Null trains the annotators of
    `noise=h_idn`.
    """

    rho: NoisyShare
    eta_low: LowestLevel
    eta_high: HighestLevel
    annotator: Annotator
    soft_labels: Annotated[str, Field(title="the path of a CSV file")] | None
    legacy_seed: LegacySeed

    def __post_init__(self) -> None:
        check_fields(self, "noise")
        require_ordered_levels(self.eta_low, self.eta_high)

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        clean = clean_labels(dataset, "h_idn_official")
        require_two_classes(dataset)
        rng = legacy_rng(self.legacy_seed, seed)
        eta = legacy_levels(self.rho, self.eta_low, self.eta_high, len(shards), rng)
        counts = {k: int(eta[k] * len(shard)) for k, shard in enumerate(shards)}
        observed = clean.copy()
        for k, p in self._annotated(dataset, {k: shards[k] for k in counts if counts[k]}, seed).items():
            labels = clean[shards[k]]
            possible = int((wrong_probability(p, labels) > 0).sum())
            require(
                counts[k] <= possible,
                f"noise=h_idn_official cannot choose {counts[k]} samples of client {k}: its annotator is certain of "
                f"all but {possible}, and there the released code fails; type noise=h_idn",
            )
            observed[shards[k]] = flip(p, labels, counts[k], rng, epsilon=0.0)
        return NoisyLabels(observed, eta)

    def _annotated(self, dataset: Dataset, shards: dict[int, np.ndarray], seed: int) -> dict[int, np.ndarray]:
        if self.soft_labels is None:
            return soft_labels(self.annotator, dataset, shards, seed)
        table = read_soft_labels(Path(self.soft_labels), len(dataset.labels), dataset.num_classes)
        return {k: table[shard] for k, shard in shards.items()}


@dataclass(frozen=True)
class HRandomOfficial:
    """`HRandom` as released."""

    rho: NoisyShare
    eta_low: LowestLevel
    eta_high: HighestLevel
    legacy_seed: LegacySeed

    def __post_init__(self) -> None:
        check_fields(self, "noise")
        require_ordered_levels(self.eta_low, self.eta_high)

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        observed = clean_labels(dataset, "h_random_official").copy()
        rng = legacy_rng(self.legacy_seed, seed)
        eta = legacy_levels(self.rho, self.eta_low, self.eta_high, len(shards), rng)
        for k in np.flatnonzero(eta > 0):
            chosen = shards[k][rng.rand(len(shards[k])) <= eta[k]]
            observed[chosen] = rng.randint(0, dataset.num_classes, len(chosen))
        return NoisyLabels(observed, eta)


def legacy_levels(rho: float, low: float, high: float, num_clients: int, rng: np.random.RandomState) -> np.ndarray:
    """η, (clients,): a shuffled vector with int(ρK) ones, times a level for every client."""
    noisy = np.zeros(num_clients)
    noisy[: int(rho * num_clients)] = 1
    rng.shuffle(noisy)
    return noisy * ((high - low) * rng.rand(num_clients) + low)


def read_soft_labels(path: Path, num_samples: int, num_classes: int) -> np.ndarray:
    """p(Y|x) of all training samples, (n, classes), from FedNoRo's CSV format."""
    try:
        table = pd.read_csv(path).iloc[:, 1 : num_classes + 1].to_numpy(dtype=np.float64)
    except (OSError, ValueError) as error:
        raise UserError(f"noise.soft_labels={path} cannot be read: {error}") from error
    if table.shape != (num_samples, num_classes) or not (table >= 0).all():
        raise UserError(
            f"noise.soft_labels={path} must have a header, {num_samples} rows, and {num_classes} columns of "
            f"probabilities after the column of ids; it has {table.shape[0]} rows and {table.shape[1]} such columns"
        )
    return table
