"""Partitions exactly as the released codes of FedCorr, FedNoRo and FedRN draw them, with what they drop.

Given the released code's seed as `legacy_seed`, the same clients hold the same samples in the same order; with
`ShardsOfficial` the same classes, and within a class what the data's order makes of it. FedCorr and FedNoRo keep a
client's indices in Python sets and walk them in hash order, which decides later whose label is corrupted, so sets are
used here too, filled in the same order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fnll.errors import UserError
from fnll.scenario.legacy import LegacySeed, legacy_rng
from fnll.scenario.partition.dealing import Concentration, HoldsClass, MinSize, PerClient, require_room
from fnll.settings import check_fields

log = logging.getLogger(__name__)

ROW_REDRAWS = 10_000  # the released code retries for ever
BLOCK_REDRAWS = 100  # likewise
BLOCKS = 10  # hard-coded by FedRN


@dataclass(frozen=True)
class IidOfficial:
    """Each client in turn draws floor(n / N) of the samples that are left; the remainder of n / N is dropped.

    All that is left is shuffled for every client, so the cost grows with n·N.
    """

    legacy_seed: LegacySeed

    def __post_init__(self) -> None:
        check_fields(self, "partition")

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        require_room(len(labels), num_clients, 1)
        rng = legacy_rng(self.legacy_seed, seed)
        size = len(labels) // num_clients
        remaining = list(range(len(labels)))
        parts = []
        for _ in range(num_clients):
            chosen = set(rng.choice(remaining, size, replace=False).tolist())
            remaining = list(set(remaining) - chosen)
            parts.append(_in_hash_order(chosen))
        _say_dropped("iid_official", len(remaining), len(labels))
        return parts


@dataclass(frozen=True)
class BernoulliDirichletOfficial:
    """FedCorr's and FedNoRo's non-IID partition; a client may come out empty, and nothing is dropped.

    Draws: Φ, again for clients without a class until there is none, then per class its Dirichlet shares and one
    categorical draw per sample. FedNoRo always uses `legacy_seed` 100.
    """

    p: HoldsClass
    alpha: Concentration
    legacy_seed: LegacySeed

    def __post_init__(self) -> None:
        check_fields(self, "partition")

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        require_room(len(labels), num_clients, 1)
        rng = legacy_rng(self.legacy_seed, seed)
        phi = self._holders(rng, num_clients, int(labels.max()) + 1)
        clients: dict[int, set[int]] = {}
        for j, holds in enumerate(phi.T):
            members = np.flatnonzero(labels == j)
            for k, part in self._shares(rng, np.flatnonzero(holds), members):
                # The first class makes a set and later ones a copied union: both steps shape the hash order.
                clients[k] = set(clients[k] | set(part)) if k in clients else set(part)
        return [_in_hash_order(clients[k]) for k in range(num_clients)]

    def _holders(self, rng: np.random.RandomState, num_clients: int, num_classes: int) -> np.ndarray:
        phi = rng.binomial(1, self.p, size=(num_clients, num_classes))
        for _ in range(ROW_REDRAWS):
            empty = np.flatnonzero(phi.sum(1) == 0)
            if not len(empty):
                break
            phi[empty] = rng.binomial(1, self.p, size=(len(empty), num_classes))
        if not (phi.any(0).all() and phi.any(1).all()):
            raise UserError(
                f"partition.p={self.p} left a class without a client, or a client without a class, where the released "
                "code fails; type partition=bernoulli_dirichlet, another partition.legacy_seed or a larger partition.p"
            )
        return phi

    def _shares(
        self, rng: np.random.RandomState, holders: np.ndarray, members: np.ndarray
    ) -> list[tuple[int, list[int]]]:
        q = rng.dirichlet([self.alpha] * len(holders))
        if not np.isfinite(q).all():
            raise UserError(
                f"partition.alpha={self.alpha} is too small for numpy's legacy generator; type 0.01 or more"
            )
        owner = rng.choice(holders, size=len(members), p=q)
        order = np.argsort(owner, kind="stable")
        cuts = np.searchsorted(owner[order], holders, side="right")[:-1]
        parts = np.split(members[order], cuts)
        return [(int(k), part.tolist()) for k, part in zip(holders, parts, strict=True)]


@dataclass(frozen=True)
class ShardsOfficial:
    """FedRN's shards: samples sorted by label and cut into S·N equal shards; each client draws S = `per_client`.

    What is left over after the cut is dropped, and a shard may cross from one class to the next. The released sort
    leaves the order within a class to numpy's build; here it is the data's.
    """

    per_client: PerClient
    legacy_seed: LegacySeed

    def __post_init__(self) -> None:
        check_fields(self, "partition")

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        num_shards = self.per_client * num_clients
        if num_shards > len(labels):
            raise UserError(
                f"partition.per_client={self.per_client} for num_clients={num_clients} makes {num_shards} shards of "
                f"{len(labels)} samples; type partition.per_client={len(labels) // num_clients} or fewer"
            )
        rng = legacy_rng(self.legacy_seed, seed)
        size = len(labels) // num_shards
        shards = np.argsort(labels, kind="stable")[: num_shards * size].reshape(num_shards, size)
        remaining = list(range(num_shards))
        parts = []
        for _ in range(num_clients):
            chosen = set(rng.choice(remaining, self.per_client, replace=False).tolist())
            remaining = list(set(remaining) - chosen)
            parts.append(shards[list(chosen)].ravel())
        for part in parts:
            rng.shuffle(part)
        _say_dropped("shards_official", len(labels) - num_shards * size, len(labels))
        return parts


@dataclass(frozen=True)
class DirichletOfficial:
    """FedRN's Dirichlet splitter, which never looks at the labels: it splits ten equal blocks of *positions*.

    On data in random class order the clients are therefore alike in their classes and differ in size. Otherwise as
    `Dirichlet` with `balanced`; everything is drawn again until each client has `min_size` samples (10 in the released
    code). n mod 10 samples are dropped.
    """

    by_position: ClassVar[bool] = True

    beta: Concentration
    min_size: MinSize
    legacy_seed: LegacySeed

    def __post_init__(self) -> None:
        check_fields(self, "partition")

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        require_room(len(labels), num_clients, self.min_size)
        rng = legacy_rng(self.legacy_seed, seed)
        for _ in range(BLOCK_REDRAWS):
            parts = self._draw(rng, len(labels), num_clients)
            if min(map(len, parts)) >= self.min_size:
                break
        else:
            raise UserError(
                f"{BLOCK_REDRAWS} draws with partition.beta={self.beta} left a client with fewer than "
                f"partition.min_size={self.min_size} samples; type partition=dirichlet, which always ends, or "
                "fewer clients with num_clients"
            )
        for part in parts:
            rng.shuffle(part)
        _say_dropped("dirichlet_official", len(labels) % BLOCKS, len(labels))
        return parts

    def _draw(self, rng: np.random.RandomState, num_samples: int, num_clients: int) -> list[np.ndarray]:
        size = num_samples // BLOCKS
        pieces: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        held = np.zeros(num_clients, dtype=np.int64)
        for block in range(BLOCKS):
            members = np.arange(block * size, (block + 1) * size)
            rng.shuffle(members)
            shares = rng.dirichlet(np.repeat(self.beta, num_clients)) * (held < num_samples / num_clients)
            if not shares.sum() > 0:  # all shares went to clients that are full (or the draw underflowed)
                return [np.empty(0, dtype=np.int64)]
            cuts = (np.cumsum(shares / shares.sum()) * size).astype(int)[:-1]
            for k, piece in enumerate(np.split(members, cuts)):
                pieces[k].append(piece)
                held[k] += len(piece)
        return [np.concatenate(piece) for piece in pieces]


def _in_hash_order(indices: set[int]) -> np.ndarray:
    return np.fromiter(indices, dtype=np.int64, count=len(indices))


def _say_dropped(name: str, dropped: int, total: int) -> None:
    if dropped:
        log.warning("partition=%s leaves out %d of %d samples, as the released code does", name, dropped, total)
