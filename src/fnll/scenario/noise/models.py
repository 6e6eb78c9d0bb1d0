"""How labels are corrupted, client by client. H-IDN is in `h_idn`, the released codes' draws in `noise_official`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fnll.errors import UserError, nearest, require
from fnll.scenario.noise.label_maps import MAPS, MapName
from fnll.scenario.scenario import Dataset, NoisyLabels
from fnll.seeding import numpy_rng
from fnll.settings import check_fields

Rho = Annotated[float, Field(ge=0, le=1, description="ρ is the probability that a client is noisy")]
Tau = Annotated[float, Field(ge=0, le=1, description="τ is the lowest noise level of a noisy client")]
LabelPool = Literal["all", "ten"]
Kind = Literal["symmetric", "asymmetric", "mixed"]
Low = Annotated[float, Field(ge=0, le=1, description="the noise rate of the first client")]
High = Annotated[float, Field(ge=0, le=1, description="the noise rate at the end of the ramp")]


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

    rho: Rho
    tau: Tau
    count: Literal[
        "exact", "bernoulli"
    ]  # exact: floor(μ n) samples (paper); bernoulli: each sample with probability μ (released code)
    label_pool: (
        LabelPool  # all: the data set's classes (paper); ten: classes 0 to 9 whatever the data set (released code)
    )

    def __post_init__(self) -> None:
        check_fields(self, "noise")

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


@dataclass(frozen=True)
class Ramp:
    """FedRN's noise, section 5.1: the rate rises linearly with the client's index, from `low` to `high`.

    floor(rate n) of a client's samples, chosen uniformly, get another label: any other one with equal probability
    (`symmetric`), or the one that `map` says (`asymmetric`). `mixed`: the first half of the clients is symmetric, the
    rest asymmetric, each half with a ramp of its own.
    """

    kind: Kind
    low: Low
    high: High
    map: MapName  # of the asymmetric clients: pair_flip, semantic (CIFAR-10) or super_class (CIFAR-100)

    def __post_init__(self) -> None:
        check_fields(self, "noise")
        require_rising(self.low, self.high)

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        observed = clean_labels(dataset, "ramp").copy()
        require_two_classes(dataset)
        rates = np.concatenate([np.linspace(self.low, self.high, size) for _, size in groups(self.kind, len(shards))])
        kinds = [kind for kind, size in groups(self.kind, len(shards)) for _ in range(size)]
        new_label = MAPS[self.map](dataset) if "asymmetric" in kinds else None
        for k, shard in enumerate(shards):
            rng = numpy_rng(seed, "client", k)
            chosen = shard[rng.choice(len(shard), whole(rates[k] * len(shard)), replace=False)]
            if kinds[k] == "asymmetric" and new_label is not None:
                observed[chosen] = new_label[observed[chosen]]
            else:
                observed[chosen] += rng.integers(1, dataset.num_classes, size=len(chosen))
        return NoisyLabels(observed % dataset.num_classes, rates)


@dataclass(frozen=True)
class Human:
    """Labels that people gave (CIFAR-N). Nominal levels are the label sets' own rates over the whole training set.

    `labels` names the set that all clients use, or is `per_client`: each client draws one of the sets, which gives
    levels that differ between clients as people do.
    """

    labels: Annotated[str, Field(title="the name of a label set, or per_client")]

    def __post_init__(self) -> None:
        check_fields(self, "noise")

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        clean = clean_labels(dataset, "human")
        sets = {name: labels.numpy() for name, labels in sorted(dataset.annotations.items())}
        require(bool(sets), f"noise=human needs human labels, and {dataset.name} has none; type dataset=cifar10n")
        if self.labels == "per_client":
            chosen = [list(sets)[i] for i in numpy_rng(seed, "sets").integers(len(sets), size=len(shards))]
        elif self.labels in sets:
            chosen = [self.labels] * len(shards)
        else:
            known = nearest(self.labels, [*sets, "per_client"])
            raise UserError(f"noise.labels={self.labels} is not a label set of {dataset.name}; {known}")
        observed = clean.copy()
        for name, shard in zip(chosen, shards, strict=True):
            observed[shard] = sets[name][shard]
        rates = {name: float((labels != clean).mean()) for name, labels in sets.items()}
        return NoisyLabels(observed, np.array([rates[name] for name in chosen]))


@dataclass(frozen=True)
class Native:
    """Labels as they are, of a data set that is noisy already; which are wrong is known at most from a review."""

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels:
        require(
            dataset.native_noise,
            f"noise=native takes labels as they are, noisy or not, and those of {dataset.name} are said to be clean; "
            "type noise=none, or, if you have images of your own whose labels may be wrong, dataset.clean=false "
            "(dataset=image_folder) or dataset=table",
        )
        return NoisyLabels(dataset.labels.numpy().copy(), np.full(len(shards), np.nan))


def require_rising(low: float, high: float) -> None:
    """Demand that a ramp does not fall."""
    require(
        low <= high,
        f"noise.low must be in [0, {high:g}], got {low}; the noise rate of the first client, where the ramp ends at "
        f"noise.high={high:g}",
    )


def groups(kind: str, num_clients: int) -> list[tuple[str, int]]:
    """The kinds of noise and how many clients have them, in the order of the clients."""
    if kind == "mixed":
        half = num_clients // 2
        return [("symmetric", half), ("asymmetric", num_clients - half)]
    return [(kind, num_clients)]


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


def require_two_classes(dataset: Dataset) -> None:
    """Another label needs another class."""
    require(dataset.num_classes > 1, f"{dataset.name} has one class, so no label can be wrong; type noise=none")


def whole(x: float) -> int:
    """The floor of `x`, safe against products such as 500 * 0.006 that land just below a whole number."""
    return int(np.floor(x + 1e-9))
