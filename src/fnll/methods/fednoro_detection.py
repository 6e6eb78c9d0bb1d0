"""The first stage's question: which clients are noisy? (FedNoRo, section 4.1 and table 3)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fnll.tools import Variant, fill_missing_classes, lid, min_max, two_component_gmm

log = logging.getLogger(__name__)

Covariance = Literal["full", "diag"]

VOTES = 9  # mixtures of the released code, with the seeds 0 to 8


def loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy on plain logits, without adjustment, as in the released code; NaN counts as infinite."""
    return F.cross_entropy(logits, y, reduction="none").nan_to_num(nan=torch.inf, posinf=torch.inf)


def doubt(logits: Tensor, y: Tensor) -> Tensor:
    """1 − max_c p(c|x): FedNoiL's confidence, inverted, so that here too larger means noisier."""
    return 1 - logits.softmax(dim=1).amax(dim=1)


def dimensionality(logits: Tensor, y: Tensor) -> Tensor:
    """The LID of each prediction among the client's own, as in FedCorr; NaN for clients of fewer than three samples."""
    return lid(logits.softmax(dim=1))


INDICATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "loss": loss,
    "confidence": doubt,
    "lid": dimensionality,
}  # logits (n, C), labels (n,) → one number per sample, larger for noisier ones


def indicator_table(means: Tensor, *, normalise: bool) -> Tensor:
    """What the clients reported, (K, C), as a table without gaps, (K, classes that occur); equation 3 if `normalise`.

    A missing class (NaN) gets the smallest value any client has there. What is infinite counts as the largest finite
    value of its class. A class that no client has is dropped, and one in which all agree becomes 0.
    """
    absent = int(means.isnan().all(dim=0).sum())
    if absent:
        log.warning("FedNoRo's indicator: %d of %d entries are known of no client and left out", absent, means.shape[1])
    if means.isinf().any():
        log.warning("FedNoRo's indicator: infinite values count as the largest finite one of their class")
        finite = means.masked_fill(~means.isfinite(), -torch.inf).amax(dim=0)
        means = means.where(~means.isinf(), finite.nan_to_num(neginf=0.0))
    table = fill_missing_classes(means)
    if not normalise:
        return table
    flat = int((table.amax(dim=0) == table.amin(dim=0)).sum())
    if flat:
        log.warning("FedNoRo's indicator: all clients agree in %d of %d entries, which become 0", flat, table.shape[1])
    return min_max(table, when_flat=0.0)


def noisy_rows(table: Tensor, component: Variant, covariance: Covariance, seed: int) -> frozenset[int]:
    """The rows of an indicator table that a two-component Gaussian mixture takes for noisy.

    `paper`: one mixture; clean is the component whose mean has the smaller Euclidean norm. `official`: nine mixtures
    with the seeds 0 to 8 (`seed` is not used); clean is the smaller sum, and the set found most often wins, the first
    of them on ties. A mixture that separates nothing finds nobody.
    """
    if component == "paper":
        return _high(table, covariance, seed, "norm")
    votes = [_high(table, covariance, vote, "sum") for vote in range(VOTES)]
    return Counter(votes).most_common(1)[0][0]  # in order of first appearance where counts are equal


def _high(table: Tensor, covariance: Covariance, seed: int, order: Literal["sum", "norm"]) -> frozenset[int]:
    low = two_component_gmm(table, seed=seed, covariance=covariance, order=order).low
    return frozenset((~low).nonzero().flatten().tolist())
