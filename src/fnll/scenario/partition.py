"""How the training set is split over clients.

Every partition here uses each sample exactly once and gives every client at least `min_size` samples: it is drawn up to
`dealing.REDRAWS` times, and then the largest clients give samples away. A request that cannot be met is refused with
advice. The released codes' own versions, which drop samples and may leave clients empty, are in `partition_official`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fnll.errors import require_between, require_integer, require_positive
from fnll.scenario.dealing import Counts, deal, large_enough, require_room
from fnll.seeding import numpy_rng

ROW_REDRAWS = 100  # draws of a client without any class before it is given one

_MIN_SIZE = "the smallest number of samples a client may have"


@dataclass(frozen=True)
class Iid:
    """Equal random parts; sizes differ by at most one."""

    min_size: int

    def __post_init__(self) -> None:
        require_integer("partition.min_size", self.min_size, 1, _MIN_SIZE)

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

    p: float
    alpha: float
    min_size: int

    def __post_init__(self) -> None:
        require_positive("partition.p", self.p, "p is the probability that a client holds a class")
        require_between("partition.p", self.p, 0, 1, "p is the probability that a client holds a class")
        require_positive("partition.alpha", self.alpha, "α is the concentration of a class's shares over its holders")
        require_integer("partition.min_size", self.min_size, 1, _MIN_SIZE)

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

        return deal(groups, large_enough(draw, phi, self.min_size), numpy_rng(seed, "deal"))

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
