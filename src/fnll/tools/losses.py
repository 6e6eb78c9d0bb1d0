"""What a network says about a client's own samples; losses of single and mixed samples, and losses robust to noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fnll.net import batch_dependent
from fnll.seeding import walk
from fnll.tools.variant import Variant, require_variant
from fnll.types import Client

LABEL_FLOOR = 1e-4  # stands for the zeros of a one-hot label in a logarithm: Wang et al.'s released code


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards every submodule in the mode it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def predict(module: nn.Module, client: Client, augment: bool = False, size: int = 512) -> Tensor:
    """Logits of all of a client's samples in order, (n, C) on the CPU.

    `augment` shows one random view of each image, as all three official codes do in passes like this one. `size`
    matters only to networks that normalise by the batch; these see the samples in a fixed random order. The module must
    be on the client's device.
    """
    shuffled = batch_dependent(module)
    with evaluating(module), torch.inference_mode():
        parts = [module(batch.x).cpu() for batch in client.scan(size, augment=augment, shuffled=shuffled)]
    # joined outside inference mode, or autograd would refuse to use them as targets
    logits = torch.cat(parts) if parts else torch.zeros(0, client.data.num_classes)
    return in_order(logits) if shuffled else logits


def in_order(walked: Tensor) -> Tensor:
    """What a shuffled `Client.scan` gave for each sample, in the order of the samples."""
    back = torch.empty_like(walked)
    back[walk(len(walked))] = walked
    return back


def sample_losses(
    module: nn.Module, client: Client, variant: Variant = "paper", augment: bool = False, size: int = 512
) -> Tensor:
    """The cross-entropy of each of a client's samples in order, (n,); `official` is FedCorr's double softmax."""
    require_variant(variant)
    logits = predict(module, client, augment, size)
    if variant == "official":
        return double_softmax_cross_entropy(logits, client.data.y)
    return F.cross_entropy(logits, client.data.y, reduction="none")


def double_softmax_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """−log σ(σ(f))_y per sample: probabilities given to a loss that expects logits, as in FedCorr's code.

    Its values span exactly 1, from log(1 + (C − 1)/e) to log(e + C − 1), and may order samples otherwise than
    cross-entropy does.
    """
    return F.cross_entropy(logits.softmax(dim=1), y, reduction="none")


class Mixed(NamedTuple):
    """The labels of convex combinations of two samples. Shares are tensors, since they differ between clients."""

    y_a: Tensor
    y_b: Tensor
    share: Tensor  # λ: how much of the first sample
    rest: Tensor  # 1 − λ, rounded by itself


def mixup(x: Tensor, y: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Mixed]:
    """Zhang et al. 2018: one λ ~ Beta(α, α) for the batch and a random partner for each sample; α = 0 mixes nothing."""
    seed = int(torch.randint(2**62, (), generator=generator))  # torch's Beta takes no generator
    share = float(np.random.default_rng(seed).beta(alpha, alpha)) if alpha > 0 else 1.0
    partner = torch.randperm(len(x), generator=generator).to(x.device)
    parts = (torch.tensor(part, dtype=x.dtype, device=x.device) for part in (share, 1 - share))
    return share * x + (1 - share) * x[partner], Mixed(y, y[partner], *parts)


def mixed_cross_entropy(logits: Tensor, mixed: Mixed) -> Tensor:
    """λ CE(f, y_a) + (1 − λ) CE(f, y_b), averaged over the batch."""
    log_probs = F.log_softmax(logits, dim=1)
    return mixed.share * F.nll_loss(log_probs, mixed.y_a) + mixed.rest * F.nll_loss(log_probs, mixed.y_b)


def symmetric_cross_entropy(logits: Tensor, labels: Tensor, alpha: float, beta: float) -> Tensor:
    """Wang et al. 2019: α CE + β RCE, averaged over the batch, (n, C) and (n,) to ().

    The reverse cross-entropy −Σ_k p_k log q_k has the one-hot label q in the logarithm. With q floored at 1e-4 it is
    −log(1e-4) (1 − p_y), about 9.21 (1 − p_y): bounded, and the same for every wrong class. β = 0 leaves it out.
    """
    loss = alpha * F.cross_entropy(logits, labels)
    if beta == 0:
        return loss
    chosen = logits.softmax(dim=1).gather(1, labels[:, None])
    return loss + beta * -math.log(LABEL_FLOOR) * (1 - chosen).mean()


def generalised_cross_entropy(logits: Tensor, labels: Tensor, q: float) -> Tensor:
    """Zhang and Sabuncu 2018: (1 − p_y^q) / q, averaged over the batch, (n, C) and (n,) to ().

    q = 1 is 1 − p_y (half the mean absolute error), q = 0 the limit: cross-entropy. Computed as −expm1(q log p_y) / q,
    which loses no digits where q is small, nor where p_y is 0 in floating point.
    """
    if q == 0:
        return F.cross_entropy(logits, labels)
    chosen = F.log_softmax(logits, dim=1).gather(1, labels[:, None])
    return -torch.expm1(q * chosen).mean() / q
