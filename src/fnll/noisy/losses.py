"""What a network says about a client's own samples, and losses of single and mixed samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fnll.noisy.variant import Variant, require_variant
from fnll.types import Client


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
    matters only to networks that normalise by the batch. The module must be on the client's device.
    """
    with evaluating(module), torch.inference_mode():
        parts = [module(batch.x).cpu() for batch in client.scan(size, augment=augment)]
    # joined outside inference mode, or autograd would refuse to use them as targets
    return torch.cat(parts) if parts else torch.zeros(0, client.data.num_classes)


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
    """A batch of convex combinations of two samples, with the labels of both."""

    x: Tensor
    y_a: Tensor
    y_b: Tensor
    share: float  # λ: how much of the first sample


def mixup(x: Tensor, y: Tensor, alpha: float, generator: torch.Generator) -> Mixed:
    """Zhang et al. 2018: one λ ~ Beta(α, α) for the batch and a random partner for each sample; α = 0 mixes nothing."""
    seed = int(torch.randint(2**62, (), generator=generator))  # torch's Beta takes no generator
    share = float(np.random.default_rng(seed).beta(alpha, alpha)) if alpha > 0 else 1.0
    partner = torch.randperm(len(x), generator=generator).to(x.device)
    return Mixed(share * x + (1 - share) * x[partner], y, y[partner], share)


def mixed_cross_entropy(logits: Tensor, mixed: Mixed) -> Tensor:
    """λ CE(f, y_a) + (1 − λ) CE(f, y_b), averaged over the batch."""
    log_probs = F.log_softmax(logits, dim=1)
    return mixed.share * F.nll_loss(log_probs, mixed.y_a) + (1 - mixed.share) * F.nll_loss(log_probs, mixed.y_b)
