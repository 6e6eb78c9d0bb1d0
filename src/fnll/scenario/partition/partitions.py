"""How the training set is split over clients.

Every partition here uses each sample exactly once and gives every client at least `min_size` samples: it is drawn up to
`dealing.REDRAWS` times, and then the largest clients give samples away. A request that cannot be met is refused with
advice. The released codes' own versions, which drop samples and may leave clients empty, are in `official`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from fnll.errors import UserError
from fnll.scenario.partition.dealing import (
    Concentration,
    Counts,
    HoldsClass,
    MinSize,
    PerClient,
    cut,
    deal,
    large_enough,
    require_room,
)
from fnll.seeding import numpy_rng
from fnll.settings import check_fields

ROW_REDRAWS = 100  # draws of a client without any class before it is given one


@dataclass(frozen=True)
class Iid:
    """Equal random parts; sizes differ by at most one."""

    min_size: MinSize

    def __post_init__(self) -> None:
        check_fields(self, "partition")

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        require_room(len(labels), num_clients, self.min_size)
        order = numpy_rng(seed, "deal").permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, num_clients)]


@dataclass(frozen=True)
class BernoulliDirichlet:
    """FedCorr's non-IID partition, section 3.1: who holds which class, and how much of it.

    Φ_ij ~ Bernoulli(p) says whether client i holds class j; the samples of class j go to its holders independently with
    probabilities q_j ~ Dir(α·1). A client without any class is drawn again (as in the released code), and a class that
    nobody holds is given to one random client (the paper is silent).
    """

    p: HoldsClass
    alpha: Concentration
    min_size: MinSize

    def __post_init__(self) -> None:
        check_fields(self, "partition")

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        require_room(len(labels), num_clients, self.min_size)
        _, groups, totals = np.unique(labels, return_inverse=True, return_counts=True)
        phi = self.holders(num_clients, len(totals), seed)

        def draw(attempt: int) -> Counts:
            rng = numpy_rng(seed, "shares", attempt)
            counts = np.zeros(phi.shape, dtype=np.int64)
            for j, total in enumerate(totals):
                q = rng.dirichlet(np.full(phi[:, j].sum(), self.alpha))
                counts[phi[:, j], j] = rng.multinomial(total, q)
            return counts

        return deal(groups, large_enough(draw, self.min_size, phi), numpy_rng(seed, "deal"))

    def holders(self, num_clients: int, num_classes: int, seed: int) -> np.ndarray:
        """Φ, (clients, classes) bool, without empty rows or columns; the classes are those that occur in the data."""
        rng = numpy_rng(seed, "holders")
        phi = rng.random((num_clients, num_classes)) < self.p
        for _ in range(ROW_REDRAWS):
            empty = np.flatnonzero(~phi.any(1))
            phi[empty] = rng.random((len(empty), num_classes)) < self.p
        empty = np.flatnonzero(~phi.any(1))  # a Bernoulli row given that it is not empty tends to one class as p → 0
        phi[empty, rng.integers(num_classes, size=len(empty))] = True
        lonely = np.flatnonzero(~phi.any(0))
        phi[rng.integers(num_clients, size=len(lonely)), lonely] = True
        return phi


@dataclass(frozen=True)
class Dirichlet:
    """The usual label skew: the samples of class j go to clients in the proportions q_j ~ Dir(β·1), on the true labels.

    `balanced` is the rule of FedRN's splitter: a client that already holds its fair share, n / N samples, gets no more.
    """

    beta: Concentration
    balanced: bool
    min_size: MinSize

    def __post_init__(self) -> None:
        check_fields(self, "partition")

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        require_room(len(labels), num_clients, self.min_size)
        _, groups, totals = np.unique(labels, return_inverse=True, return_counts=True)
        allowed = np.ones((num_clients, len(totals)), dtype=bool)

        def draw(attempt: int) -> Counts:
            rng = numpy_rng(seed, "shares", attempt)
            counts = np.zeros(allowed.shape, dtype=np.int64)
            for j, total in enumerate(totals):
                # Shares of some clients, scaled to sum to 1, are Dirichlet again: full clients are left out beforehand.
                full = self.balanced & (counts.sum(1) >= len(labels) / num_clients)
                takers = np.flatnonzero(~full)
                counts[takers, j] = cut(rng.dirichlet(np.full(len(takers), self.beta)), total)
            return counts

        return deal(groups, large_enough(draw, self.min_size, allowed), numpy_rng(seed, "deal"))


@dataclass(frozen=True)
class Quantity:
    """Size skew only: client sizes in the proportions q ~ Dir(β·1), their samples drawn at random."""

    beta: Concentration
    min_size: MinSize

    def __post_init__(self) -> None:
        check_fields(self, "partition")

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        require_room(len(labels), num_clients, self.min_size)

        def draw(attempt: int) -> Counts:
            shares = numpy_rng(seed, "shares", attempt).dirichlet(np.full(num_clients, self.beta))
            return cut(shares, len(labels))[:, None]

        counts = large_enough(draw, self.min_size, np.ones((num_clients, 1), dtype=bool))
        return deal(np.zeros(len(labels), dtype=np.int64), counts, numpy_rng(seed, "deal"))


@dataclass(frozen=True)
class Shards:
    """Pathological label skew (FedRN, FNBench): each client gets S = `per_client` of S·N shards of one class each.

    Classes are cut into shards as equal as whole numbers of them allow, so that a client has at most S classes whatever
    the data set (more only if nothing else brings it up to `min_size`). Where S·N is a multiple of the number of
    equally large classes, as in the papers, all shards are equal.
    """

    per_client: PerClient
    min_size: MinSize

    def __post_init__(self) -> None:
        check_fields(self, "partition")

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        require_room(len(labels), num_clients, self.min_size)
        _, groups, totals = np.unique(labels, return_inverse=True, return_counts=True)
        self._require_shards(len(labels), len(totals), num_clients)
        per_class = shards_per_class(totals, self.per_client * num_clients)
        sizes = np.concatenate([_even(total, parts) for total, parts in zip(totals, per_class, strict=True)])
        of_class = np.repeat(np.arange(len(totals)), per_class)

        def draw(attempt: int) -> Counts:
            owner = numpy_rng(seed, "owners", attempt).permutation(len(sizes)) // self.per_client
            counts = np.zeros((num_clients, len(totals)), dtype=np.int64)
            np.add.at(counts, (owner, of_class), sizes)
            return counts

        return deal(groups, large_enough(draw, self.min_size), numpy_rng(seed, "deal"))

    def _require_shards(self, num_samples: int, num_classes: int, num_clients: int) -> None:
        shards = self.per_client * num_clients
        if shards > num_samples:
            raise UserError(
                f"partition.per_client={self.per_client} for num_clients={num_clients} makes {shards} shards of "
                f"{num_samples} samples; type partition.per_client={num_samples // num_clients} or fewer"
            )
        if shards < num_classes:
            raise UserError(
                f"partition.per_client={self.per_client} for num_clients={num_clients} makes {shards} shards, too few "
                f"for {num_classes} classes; type partition.per_client={-(-num_classes // num_clients)} or more"
            )


def shards_per_class(totals: np.ndarray, num_shards: int) -> np.ndarray:
    """How many shards each class is cut into: one each, and every further one to the class with the largest shards."""
    parts = np.ones(len(totals), dtype=np.int64)
    largest_first = [(-total, j) for j, total in enumerate(totals)]
    heapq.heapify(largest_first)
    for _ in range(num_shards - len(totals)):
        _, j = largest_first[0]
        parts[j] += 1
        heapq.heapreplace(largest_first, (-totals[j] / parts[j], j))
    return parts


def _even(total: int, parts: int) -> np.ndarray:
    return total // parts + (np.arange(parts) < total % parts)
