"""The objectives of FedCorr's clients: mixup, and in stage 1 also the adaptive proximal term (equation 5)."""

from __future__ import annotations

import math

from torch import Tensor, nn

from fnll.local import Classifier, LocalSpec
from fnll.noisy import mixed_cross_entropy, mixup
from fnll.proximal import ProxForm, prox_penalty
from fnll.types import Batch, Client
from fnll.weights import Weights


class Mixup(Classifier):
    """Cross-entropy on the mixup of each batch (Zhang et al. 2018); `alpha` 0 leaves the batches alone."""

    def __init__(self, net: nn.Module, spec: LocalSpec, client: Client, *, alpha: float) -> None:
        super().__init__(net, spec, client.t)
        self.alpha, self.generator = alpha, client.generator

    def loss(self, batch: Batch) -> Tensor:
        if self.alpha == 0:
            return super().loss(batch)
        mixed = mixup(batch.x, batch.y, self.alpha, self.generator("mixup", batch.step))
        return mixed_cross_entropy(self.net(mixed.x), mixed)


class Preprocessing(Mixup):
    """Equation 5: mixup plus `weight` (β μ̂_k) times the distance to the weights w^(t−1) that the client received.

    `squared` is the paper's ‖w − w_g‖², in every batch; `norm_after_first_batch` the released code's ‖w − w_g‖, which
    the first batch of every epoch goes without.
    """

    def __init__(
        self,
        net: nn.Module,
        spec: LocalSpec,
        client: Client,
        *,
        alpha: float,
        anchor: Weights,
        weight: float,
        prox: str,
    ) -> None:
        super().__init__(net, spec, client, alpha=alpha)
        self.anchor = {name: value.to(client.device) for name, value in anchor.items()}
        self.weight, self.prox = weight, prox
        self.batches_per_epoch = math.ceil(len(client) / spec.batch_size)

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        first = batch.step % self.batches_per_epoch == 0
        if self.weight == 0 or (self.prox == "norm_after_first_batch" and first):
            return loss
        form: ProxForm = "squared" if self.prox == "squared" else "norm"
        return loss + self.weight * prox_penalty(dict(self.net.named_parameters()), self.anchor, form)
