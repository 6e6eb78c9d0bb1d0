"""What a FedCorr client decides about its own labels: how noisy they look, which are wrong, which to replace.

Functions of tensors only, so that every decision can be checked by hand. Arguments named after a switch of
`FedCorr` take its values.
"""

from __future__ import annotations

import logging
import math
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

from fnll.system.notices import warn_once
from fnll.tools import double_softmax_cross_entropy, lid, two_component_gmm

log = logging.getLogger(__name__)


def lid_score(logits: Tensor, neighbours: int, cap: float | None, lid_small_n: str) -> float:
    """The mean LID of a client's predictions (n, C), section 3.1; NaN where the client has too few samples for one.

    `cap` bounds the values of single samples: equal distances to all neighbours give about 10⁶ (ε is all that is left),
    and one such sample would decide the client's score.
    """
    values = lid(logits.softmax(dim=1), neighbours, "paper" if lid_small_n == "shrink_k" else "official")
    if cap is not None and bool((values > cap).any()):
        warn_once(log, f"LID values of single samples above method.lid_cap={cap:g} count as {cap:g}")
        values = values.clamp(max=cap)
    return float(values.mean())


def sample_losses(logits: Tensor, y: Tensor, sample_loss: str) -> Tensor:
    """L_CE of each sample, (n,): of the logits, or of their softmax as in the released code."""
    if sample_loss == "double_softmax":
        return double_softmax_cross_entropy(logits, y)
    return F.cross_entropy(logits, y, reduction="none")


def noisy_samples(losses: Tensor, seed: int) -> Tensor:
    """D^n: the samples in the high component of a mixture of the losses, (n,) bool; none if there are not two."""
    return ~two_component_gmm(losses, seed=seed).low


def candidates(losses: Tensor, noisy: Tensor, ratio: float, rank_pool: str) -> Tensor:
    """Positions of the samples with the largest losses that may be relabelled, equation 6; π is the `ratio`.

    `noisy_samples`: ⌊π |D^n|⌋ of D^n. `all_samples`, the released code: as many of all samples, where the count is
    computed in floating point from μ̂ = |D^n| / n and so may come out one lower.
    """
    found = int(noisy.sum())
    if rank_pool == "all_samples":
        pool, count = torch.arange(len(losses)), int(len(losses) * (found / max(1, len(losses))) * ratio)
    else:
        # as written in the config: 0.29 of 100 is 29, although 0.29 * 100 < 29
        pool, count = noisy.nonzero().flatten(), math.floor(Fraction(str(ratio)) * found)
    order = losses[pool].argsort(descending=True, stable=True)
    return pool[order[:count]]


def relabelled(y: Tensor, logits: Tensor, positions: Tensor, confidence: float, conf_op: str) -> Tensor:
    """`y` with the predicted class at those `positions` where its probability reaches θ (`confidence`), equation 7."""
    top, answer = logits[positions].softmax(dim=1).max(dim=1)
    if not bool(top.isfinite().all()):
        warn_once(log, "samples whose prediction is not finite keep their label")
    sure = top >= confidence if conf_op == "at_least" else top > confidence
    labels = y.clone()
    labels[positions[sure]] = answer[sure]
    return labels
