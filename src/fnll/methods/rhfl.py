"""RHFL: FedAvg that weighs clients by how quickly, and to how low a level, their own loss falls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fnll.federation import Federation
from fnll.local import Asking, Fit, Predict, Training
from fnll.methods.fedavg import FedAvg
from fnll.tools import symmetric_cross_entropy
from fnll.types import Batch, Client, State, Update
from fnll.weights import Weights, mean

Quality = Literal["signed", "clipped"]


@dataclass(frozen=True)
class Watched(State):
    """The global weights, and every client's loss when it last took part, (clients,) float64; NaN: never."""

    losses: Tensor


@dataclass(frozen=True, kw_only=True)
class RHFL(FedAvg):
    """Fang and Ye, "Robust Federated Learning with Noisy and Heterogeneous Clients", CVPR 2022, as FedNoRo used it.

    Of RHFL without public data remain the symmetric loss and client confidence re-weighting, here as the weights of
    FedAvg's mean: client k reports the loss L_k of its model on its own data, Q_k = (L_k^{t−1} − L_k^t) / L_k^t is its
    quality, and W = softmax(1/(K − 1) + η Q_k / ΣQ) its weight. Where there is no earlier loss, weights are uniform.

    Symbols: η `eta`; λ and β of the symmetric loss `alpha`, `beta`; SL on or off `symmetric`.
    """

    privileges: ClassVar[tuple[str, ...]] = (
        "one training loss from every participant in every round",
        "one extra forward pass over each participant's data",
    )
    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cross-entropy, η = 0, means weighed by sample counts": {"symmetric": False, "eta": 0.0, "sample_counts": True},
        "cross-entropy, η = 0, clients of one size": {"symmetric": False, "eta": 0.0, "sample_counts": False},
    }

    eta: Annotated[float, Field(ge=0, description="η is how far qualities move the weights; 0 is uniform weights")]
    symmetric: bool  # train by and measure symmetric cross-entropy; false: cross-entropy
    alpha: Annotated[float, Field(ge=0, description="the weight of cross-entropy in the symmetric loss")]
    beta: Annotated[float, Field(ge=0, description="the weight of reverse cross-entropy in the symmetric loss")]
    quality: Quality  # signed: as published; clipped: negative ones, where a client's loss rose, count as 0
    measure: Literal["trained", "received"]  # whose loss is reported: the client's own model, or the global one
    sample_counts: bool  # weigh by n_k W_k; false: by W_k
    eval_augment: bool  # measure the loss on augmented images

    def init(self, fed: Federation, weights: Weights | None = None) -> Watched:
        unknown = torch.full((fed.num_clients,), torch.nan, dtype=torch.float64)
        return Watched(super().init(fed, weights).weights, losses=unknown)

    def round(self, state: Watched, fed: Federation) -> Watched:
        updates = fed.map(self.train, self.select(state, fed), weights=state.weights)
        losses = state.losses.clone()
        for update in updates:
            losses[update.client] = update.report["loss"]
        cohort = [update.client for update in updates]
        trust = relative_confidence(state.losses[cohort], losses[cohort], self.eta, self.quality)
        sizes = [(update.size or 0) if self.sample_counts else 1 for update in updates]
        parts = [size * float(factor) for size, factor in zip(sizes, trust, strict=True)]
        fed.record(agg_weights={k: part / sum(parts) for k, part in zip(cohort, parts, strict=True)})
        merged = mean([u.weights for u in updates if u.weights is not None], parts)
        return replace(state, weights=merged, losses=losses)

    def train(self, client: Client, weights: Weights) -> Training:
        module = self.module(client, weights=weights)
        loss = torch.tensor(0.0)
        if self.measure == "received":
            loss = yield from self.local_loss(module.net, client)
        trained = yield Fit(module, client)
        if self.measure == "trained":
            loss = yield from self.local_loss(module.net, client)
        return Update(trained.weights, report={"loss": loss}, memory=trained.memory)

    def local_loss(self, net: nn.Module, client: Client) -> Asking[Tensor]:
        """The mean loss of `net` on the client's own labels."""
        logits = yield Predict(net, client, self.eval_augment)
        return self._criterion(logits.double(), client.data.y)

    def loss(self, net: nn.Module, batch: Batch, **_: Any) -> Tensor:
        return self._criterion(net(batch.x), batch.y)

    def _criterion(self, logits: Tensor, labels: Tensor) -> Tensor:
        if not self.symmetric:
            return F.cross_entropy(logits, labels)
        return symmetric_cross_entropy(logits, labels, self.alpha, self.beta)


def confidence_weights(before: Tensor, now: Tensor, eta: float, quality: Quality = "signed") -> Tensor:
    """Client confidence re-weighting: from clients' losses a round ago and now, (K,) each, their weights (K,), sum 1.

    Q_k = (before − now) / now, W = softmax(1/(K − 1) + η Q_k / ΣQ); the constant cancels in the softmax, so K = 1 needs
    no rule of its own. Where the qualities cancel, or one is not finite, shares mean nothing: uniform weights.
    """
    gain = (before - now) / now.clamp_min(torch.finfo(now.dtype).eps)  # a loss of 0 has the share 1, not NaN
    if quality == "clipped":
        gain = gain.clamp_min(0)
    total, size = gain.sum(), gain.abs().sum()
    rounding = len(gain) * torch.finfo(gain.dtype).eps
    if not bool(size.isfinite()) or not bool(total.abs() > rounding * size):
        return torch.full_like(gain, 1 / len(gain))
    return (eta * gain / total).softmax(dim=0)


def relative_confidence(before: Tensor, now: Tensor, eta: float, quality: Quality) -> Tensor:
    """Confidence weights up to a factor: 1 for the largest, so that equal ones are 1 exactly.

    Clients without an earlier loss (NaN), or whose loss is not finite now, are weighed like the average of the others.
    """
    known = before.isfinite() & now.isfinite()
    trust = torch.ones_like(now)
    if bool(known.any()):
        found = confidence_weights(before[known], now[known], eta, quality)
        trust[known] = found * len(found)
    return trust / trust.max()
