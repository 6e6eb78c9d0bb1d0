"""How many samples of which class each client gets, and which ones: what all partitions share.

A partition first decides a table of counts (clients, classes), which is cheap to draw again and to repair, and only
then deals samples out. Nothing here is quadratic in the number of samples or clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from fnll.errors import UserError

Counts = np.ndarray  # (clients, classes) int64: samples of each class that a client gets

Concentration = Annotated[
    float,
    Field(
        gt=0,
        description="the concentration of a Dirichlet distribution: the smaller, the more uneven; 1e6 is almost equal",
    ),
]
HoldsClass = Annotated[float, Field(gt=0, le=1, description="p is the probability that a client holds a class")]
MinSize = Annotated[int, Field(ge=1, description="the smallest number of samples a client may have")]
PerClient = Annotated[int, Field(ge=1, description="S, the number of shards a client gets")]

REDRAWS = 20  # draws of the counts before samples are moved to clients that are too small


def require_room(num_samples: int, num_clients: int, min_size: int) -> None:
    """Refuse a request that no partition can meet."""
    if num_clients > num_samples:
        raise UserError(
            f"num_clients={num_clients} is more than the {num_samples} training samples; "
            f"type num_clients={num_samples} or fewer"
        )
    if num_clients * min_size > num_samples:
        raise UserError(
            f"partition.min_size={min_size} for num_clients={num_clients} needs {num_clients * min_size} samples, and "
            f"there are {num_samples}; type partition.min_size={num_samples // num_clients} or fewer, "
            f"or num_clients={num_samples // min_size} or fewer"
        )


def large_enough(draw: Callable[[int], Counts], min_size: int, allowed: np.ndarray | None = None) -> Counts:
    """The first of `REDRAWS` draws that gives every client `min_size` samples, or the last one, repaired by `top_up`.

    `allowed` (clients, classes) are the classes a client may be given; None: those that the draw gave it.
    """
    for attempt in range(REDRAWS):
        counts = draw(attempt)
        if counts.sum(1).min() >= min_size:
            return counts
    return top_up(counts, counts > 0 if allowed is None else allowed, min_size)


def top_up(counts: Counts, allowed: np.ndarray, min_size: int) -> Counts:
    """Move samples from the largest clients to those below `min_size`.

    A client is given classes it is `allowed` (clients, classes) to hold; only when nobody can spare any of these does
    it get a class of its largest donor that it was not meant to have.
    """
    counts = counts.copy()
    sizes = counts.sum(1)
    for k in np.flatnonzero(sizes < min_size):
        while sizes[k] < min_size:
            spare = np.where(sizes > min_size, sizes, 0)
            can_give = (counts > 0) & (spare > 0)[:, None]
            wanted = can_give & allowed[k]
            gives = wanted if wanted.any() else can_give
            donor = int(np.argmax(np.where(gives.any(1), spare, 0)))
            of_class = int(np.argmax(np.where(gives[donor], counts[donor], 0)))
            moved = min(min_size - sizes[k], sizes[donor] - min_size, counts[donor, of_class])
            for client, change in ((donor, -moved), (k, moved)):
                counts[client, of_class] += change
                sizes[client] += change
    return counts


def deal(groups: np.ndarray, counts: Counts, rng: np.random.Generator) -> list[np.ndarray]:
    """Random samples for every client, `counts[k, g]` of those with `groups == g`; each client's indices ascend.

    The columns of `counts` sum to the sizes of the groups, so every sample is dealt exactly once.
    """
    num_clients, num_groups = counts.shape
    order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    owner = np.repeat(np.tile(np.arange(num_clients), num_groups), counts.T.ravel())
    cuts = np.cumsum(counts.sum(1))[:-1]
    return [np.sort(part) for part in np.split(order[np.argsort(owner, kind="stable")], cuts)]


def cut(shares: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers that sum to `total`, cut at the floors of the cumulative `shares` (which sum to 1)."""
    edges = np.floor(np.cumsum(shares)[:-1] * total).astype(np.int64)
    return np.diff(np.concatenate(([0], edges, [total])))
