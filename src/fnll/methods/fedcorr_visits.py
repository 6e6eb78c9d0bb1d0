"""Whom FedCorr's server visits in stage 1: fraction scheduling (section 3.2)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np

log = logging.getLogger(__name__)


def visits(
    clients: Sequence[int], size: int, replacement: bool, rng: np.random.Generator
) -> tuple[tuple[int, ...], ...]:
    """The cohorts of one iteration of stage 1, `size` clients each.

    Every client once, in random order (the last cohort may be smaller). With `replacement` as the released code draws
    them: a cohort may hold a client twice, later ones none of the clients seen so far, and some clients are never seen.
    """
    if not replacement:
        order = rng.permutation(list(clients)).tolist()
        return tuple(tuple(order[i : i + size]) for i in range(0, len(order), size))
    cohorts, unseen = [], list(clients)
    for _ in range(len(clients) // size):
        cohort = rng.choice(unseen, size).tolist()
        cohorts.append(tuple(cohort))
        unseen = [k for k in unseen if k not in cohort]
    return tuple(cohorts)


def iteration(clients: int, size: int, replacement: bool) -> tuple[int, int]:
    """Rounds and client updates of one iteration of stage 1 over so many clients, `size` in a round."""
    size = min(size, max(1, clients))
    return (clients // size, clients // size * size) if replacement else (-(-clients // size), clients)


def say_who_is_left_out(inhabited: set[int], scored: set[int], visited: set[int]) -> None:
    """Log which clients an iteration says nothing about, and what they count as."""
    if inhabited - scored:
        few = sorted(inhabited - scored)
        log.info(
            "clients %s have no LID score (too few samples, or predictions that are not finite); they count as clean",
            few,
        )
    if inhabited - visited:
        missed = sorted(inhabited - visited)
        log.info("drawing with replacement left out clients %s; LID and noise level of such clients are 0", missed)


def waves(cohort: Sequence[int]) -> list[list[int]]:
    """`cohort` as lists without repetition: a client that occurs twice is in two of them."""
    seen: Counter[int] = Counter()
    found: list[list[int]] = []
    for k in cohort:
        if seen[k] == len(found):
            found.append([])
        found[seen[k]].append(k)
        seen[k] += 1
    return found
