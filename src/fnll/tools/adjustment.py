"""Logit adjustment by class priors, alone and with distillation (FedNoRo, equations 4 and 5)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fnll.tools.variant import Variant, require_variant


def log_prior(counts: Tensor) -> Tensor:
    """log π up to a constant, (C,) float64: 0 for the most frequent class, −inf for classes that do not occur.

    Softmax does not see the constant. This choice makes a uniform prior exactly 0, so that it changes no bit. Without
    any sample there is no prior: all NaN (and no branch on values, so that `torch.func.vmap` can see through).
    """
    counts = counts.double()
    return (counts / counts.max()).log()


def logit_adjusted(logits: Tensor, counts: Tensor) -> Tensor:
    """f + log π (Menon et al. 2021), to be trained with cross-entropy; `counts` (C,) are the client's class counts."""
    return logits + log_prior(counts).to(logits)


def la_kd(
    logits: Tensor,
    labels: Tensor,
    teacher_probs: Tensor,
    counts: Tensor,
    weight: float | Tensor,
    variant: Variant = "paper",
) -> Tensor:
    """λ KL(y_G ‖ y_p) + (1 − λ) CE(y_p, y), averaged over the batch; y_p is the logit-adjusted student, λ the `weight`.

    `teacher_probs` y_G are σ(f_G / T), not adjusted. A class the client lacks has y_p = 0, where the divergence is not
    defined: `paper` leaves it out and lets the teacher's other probabilities sum to 1; `official` puts log y_p := 0 as
    the released code does, which can make the divergence negative. Samples with a negative label do not count, as
    F.nll_loss has it.
    """
    require_variant(variant)
    log_probs = F.log_softmax(logit_adjusted(logits, counts), dim=1)
    hard = F.nll_loss(log_probs, labels)
    counted = labels >= 0
    if variant == "official":
        soft = divergence(log_probs.masked_fill(log_probs.isneginf(), 0.0), teacher_probs, counted)
    else:
        missing = counts.to(logits.device) == 0
        known = teacher_probs.masked_fill(missing, 0.0)
        known = known / known.sum(dim=1, keepdim=True).clamp_min(torch.finfo(known.dtype).tiny)
        soft = divergence(log_probs.masked_fill(missing, 0.0), known, counted)
    return weight * soft + (1 - weight) * hard


def divergence(log_probs: Tensor, target: Tensor, counted: Tensor | None = None) -> Tensor:
    """KL(target ‖ exp(log_probs)), averaged over the batch: F.kl_div bit for bit, in terms that `vmap` knows.

    With `counted`, (n,), over the samples that it names.
    """
    if counted is None:
        return (torch.xlogy(target, target) - target * log_probs).sum() / len(target)
    target = target * counted[:, None]
    return (torch.xlogy(target, target) - target * log_probs).sum() / counted.sum()


def kd_ramp(t: float, begin: float, end: float, top: float) -> float:
    """λ at round `t`: top · exp(−5 (1 − s)²), where s goes from 0 at `begin` to 1 at `end` and is clipped outside.

    Before `begin` it is top · e⁻⁵, not 0.
    """
    if end <= begin:
        return top if t >= begin else top * math.exp(-5)
    share = (min(max(t, begin), end) - begin) / (end - begin)
    return top * math.exp(-5 * (1 - share) ** 2)
