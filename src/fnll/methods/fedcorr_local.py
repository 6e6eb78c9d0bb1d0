"""The objectives of FedCorr's clients: mixup, and in stage 1 also the adaptive proximal term (equation 5)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fnll.local import Classifier, LocalSpec
from fnll.tools import logit_adjusted, mixed_cross_entropy, mixup
from fnll.tools.proximal import ProxForm, prox_penalty
from fnll.types import Batch, Client
from fnll.weights import Weights


class Mixup(Classifier):
    """Cross-entropy on the mixup of each batch (Zhang et al. 2018); `alpha` 0 leaves the batches alone.

    With `counts`, how often each class occurs, of logits adjusted by them.
    """

    def __init__(self, net: nn.Module, spec: LocalSpec, t: int, *, alpha: float, counts: Tensor | None = None) -> None:
        super().__init__(net, spec, t)
        self.alpha, self.counts = alpha, counts

    def draw(self, batch: Batch, client: Client) -> Batch:
        if self.alpha == 0:
            return batch
        x, mixed = mixup(batch.x, batch.y, self.alpha, client.generator("mixup", batch.step))
        return replace(batch, views=(x,), extras={"mixed": mixed})

    def loss(self, batch: Batch) -> Tensor:
        logits = self.net(batch.x)
        if self.counts is not None:
            logits = logit_adjusted(logits, self.counts)
        if self.alpha == 0:
            return F.cross_entropy(logits, batch.y)
        return mixed_cross_entropy(logits, batch.extras["mixed"])


class Preprocessing(Mixup):
    """Equation 5: mixup plus `weight` (β μ̂_k) times the distance to the weights w^(t−1) that the client received.

    `squared` is the paper's ‖w − w_g‖², in every batch; `norm_after_first_batch` the released code's ‖w − w_g‖, which
    the first batch of every epoch goes without.
    """

    def __init__(
        self,
        net: nn.Module,
        spec: LocalSpec,
        t: int,
        *,
        alpha: float,
        anchor: Weights,
        weight: float,
        prox: str,
        counts: Tensor | None = None,
    ) -> None:
        super().__init__(net, spec, t, alpha=alpha, counts=counts)
        self.anchor, self.prox = anchor, prox
        self.weight = torch.tensor(weight)  # a tensor, since it differs between clients that are trained together

    def draw(self, batch: Batch, client: Client) -> Batch:
        batch = super().draw(batch, client)
        first = batch.step % math.ceil(len(client) / self.spec.batch_size) == 0
        near = bool(self.weight != 0) and not (self.prox == "norm_after_first_batch" and first)
        return replace(batch, extras={**batch.extras, "near": near})

    def loss(self, batch: Batch) -> Tensor:
        loss, near = super().loss(batch), batch.extras["near"]
        if near is False:  # a tensor where clients that are trained together differ in it
            return loss
        form: ProxForm = "squared" if self.prox == "squared" else "norm"
        return loss + near * self.weight * prox_penalty(dict(self.net.named_parameters()), self.anchor, form)
