"""FedDyn: a local penalty that moves from round to round, so that clients agree on the minimum of their mean loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fnll.federation import Federation
from fnll.local import Classifier, Fit, Training
from fnll.methods.fedavg import FedAvg
from fnll.tools.proximal import prox_penalty
from fnll.types import Batch, Client, Each, State, Update
from fnll.weights import Weights, mean, squared_distance, tree, zeros_like

Value = TypeVar("Value", Tensor, Weights)


@dataclass(frozen=True)
class FedDynState(State):
    """What FedDyn's server carries; `weights` is the model that it sends out."""

    correction: Weights  # the mean of all clients' h_k; parameters only, no buffers
    average: Weights  # of the models that the last participants sent
    latest: dict[int, Weights]  # every client's last model, while `judged` needs them


@dataclass(frozen=True, kw_only=True)
class FedDyn(FedAvg):
    """Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.

    A participant minimises L_k(θ) − ⟨∇L_k(θ_k), θ⟩ + (α/2)‖θ − θ_s‖², where θ_s is the server's model and θ_k its own
    last one (equation 1). At the minimum ∇L_k(θ_k) grows by −α(θ_k − θ_s), so that a client only keeps the sum of its
    drifts h_k = −∇L_k(θ_k)/α. The server sends θ_s = mean of the participants' θ_k + mean of all clients' h_k: where
    this stands still, so do the clients, at a minimum of the mean of their losses.

    Symbols: α `alpha`. The settings from `alpha_of_client` on are where paper and released code differ, and what is
    ours: docs/methods/feddyn.md.
    """

    privileges: ClassVar[tuple[str, ...]] = ("each client keeps a correction as large as the model between its rounds",)
    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "α = 0, without the server's correction": {"alpha": 0.0, "server_correction": False},
        "the same with clients weighed by samples": {
            "alpha": 0.0,
            "server_correction": False,
            "client_weights": "samples",
        },
    }

    alpha: Annotated[float, Field(ge=0, description="α weighs the moving penalty; 0 trains as FedAvg does")]
    server_correction: bool
    alpha_of_client: Literal["equal", "inverse_size"]
    quadratic: Literal["in_loss", "weight_decay"]
    client_weights: Literal["equal", "samples"]
    judged: Literal["server", "participants", "all_clients"]

    # The server

    def init(self, fed: Federation, weights: Weights | None = None) -> FedDynState:
        start = super().init(fed, weights).weights
        latest = dict.fromkeys(fed.inhabited, start) if self.judged == "all_clients" else {}
        return FedDynState(start, correction=zeros_like(self._parameters(start)), average=start, latest=latest)

    def round(self, state: FedDynState, fed: Federation) -> FedDynState:
        cohort = self.select(state, fed)
        strength = Each([self._alpha(k, fed) for k in cohort])
        updates = fed.map(self.train, cohort, weights=state.weights, strength=strength)
        average = self.aggregate(state, updates, fed)
        correction = self._corrected(state, updates, fed)
        fed.record(correction_norm=float(squared_distance(correction, zeros_like(correction)).sqrt()))
        sent = server_model(average, correction) if self.server_correction else average
        fresh = {u.client: u.weights for u in updates if u.weights is not None} if state.latest else {}
        return FedDynState(sent, correction=correction, average=average, latest=state.latest | fresh)

    def aggregate(self, state: Any, updates: list[Update], fed: Federation) -> Weights:
        if self.client_weights == "samples":
            return super().aggregate(state, updates, fed)
        return mean([u.weights for u in updates if u.weights is not None])

    def model(self, state: FedDynState) -> nn.Module:  # type: ignore[override]
        if self.judged == "server":
            return super().model(state)
        return self.net.load(state.average if self.judged == "participants" else mean(list(state.latest.values())))

    def _corrected(self, state: FedDynState, updates: list[Update], fed: Federation) -> Weights:
        """The mean of all h_k after this round: the server sees every drift, so that no client sends its h_k."""
        share = len(updates) / len(fed.inhabited)
        moved = mean([u.weights for u in updates if u.weights is not None])
        return {name: h + share * (moved[name] - state.weights[name]) for name, h in state.correction.items()}

    def _alpha(self, k: int, fed: Federation) -> Tensor:
        """α_k, as a tensor, since clients may be trained together whose α_k differ."""
        if self.alpha_of_client == "equal":
            return torch.tensor(self.alpha)
        return torch.tensor(self.alpha * sum(fed.sizes) / len(fed.inhabited) / fed.sizes[k])

    def _parameters(self, weights: Weights) -> Weights:
        return {name: weights[name] for name, _ in self.net.load(weights).named_parameters()}

    # The clients

    def train(self, client: Client, weights: Weights, strength: Tensor) -> Training:
        kept = client.memory.get("h")
        h = cast(Weights, kept) if kept is not None else zeros_like(self._parameters(weights))
        trained = yield Fit(self.module(client, weights=weights, strength=strength, h=h), client)
        drift = {name: trained.weights[name] - weights[name] for name in h}
        return Update(trained.weights, memory={**trained.memory, "h": tree(torch.add, h, drift)})

    def module(self, client: Client, weights: Weights, strength: Tensor, h: Weights) -> Classifier:
        facts = {"weights": weights, "strength": strength, "h": h}
        if self.quadratic == "in_loss" or self.alpha == 0:
            return Classifier(self.net.load(weights), self.local, client.t, self.loss, **facts)
        return Decayed(self.net.load(weights), self.local, client.t, self.loss, decay=float(strength), **facts)

    def loss(self, net: nn.Module, batch: Batch, *, weights: Weights, strength: Tensor, h: Weights) -> Tensor:
        loss = super().loss(net, batch)
        if self.alpha == 0:  # exactly FedAvg: 0 times a penalty would still cost a backward pass
            return loss
        params = dict(net.named_parameters())
        if self.quadratic == "in_loss":
            return loss + strength * (linear(params, h) + prox_penalty(params, weights, "half_squared"))
        return loss + strength * (linear(params, h) - linear(params, weights))  # the rest of ½‖θ − θ_s‖² is the decay


class Decayed(Classifier):
    """Adds α_k to the optimiser's weight decay: the gradient of (α_k/2)‖θ‖², outside whatever clips the loss's."""

    def __init__(self, *args: Any, decay: float, **facts: Any) -> None:
        super().__init__(*args, **facts)
        self.decay = decay

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        for group in optimizer.param_groups:
            group["weight_decay"] += self.decay
        return optimizer


def linear(params: Mapping[str, Tensor], slope: Mapping[str, Tensor]) -> Tensor:
    """⟨θ, slope⟩ over the parameters."""
    terms = [torch.dot(value.flatten(), slope[name].to(value).flatten()) for name, value in params.items()]
    return torch.stack(terms).sum()


def server_model(locals_mean: Value, corrections_mean: Value) -> Value:
    """θ_s = mean of the participants' θ_k + mean of all clients' h_k; entries without a correction (buffers) stay."""
    if isinstance(locals_mean, Tensor):
        return locals_mean + corrections_mean
    return {name: v + corrections_mean[name] if name in corrections_mean else v for name, v in locals_mean.items()}
