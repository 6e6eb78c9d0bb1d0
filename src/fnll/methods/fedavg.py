"""FedAvg: the baseline, and the template of every method that trains, uploads and averages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fnll.federation import Federation
from fnll.local import Classifier, Fit, LocalSpec, Training
from fnll.net import Net
from fnll.settings import check_fields
from fnll.types import Batch, Client, State, Update
from fnll.weights import Weights, mean


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

    Algorithm 1: each round the server samples m = max(C·K, 1) clients, each runs E epochs of SGD from the global
    weights w, and the server averages what comes back, weighted by sample counts n_k.

    Symbols: m `cohort_size`; E, B, η `local`.
    """

    net: Net
    local: LocalSpec
    cohort_size: int

    def __post_init__(self) -> None:
        check_fields(self, "method")

    @property
    def cohort(self) -> int:
        """What `cohort_size` was called in 0.1, for plugins."""
        return self.cohort_size

    def init(self, fed: Federation, weights: Weights | None = None) -> State:
        """Fresh weights, the same for every method and seed; or the weights that an outer method hands over."""
        return State(self.net.fresh(fed.seed("net")) if weights is None else weights)

    def round(self, state: Any, fed: Federation) -> State:
        updates = fed.map(self.train, self.select(state, fed), weights=state.weights)
        return replace(state, weights=self.aggregate(state, updates, fed))

    def model(self, state: State) -> nn.Module:
        return self.net.load(state.weights)

    # What a simple method overrides

    def select(self, state: Any, fed: Federation) -> list[int]:
        return fed.sample(self.cohort_size)

    def train(self, client: Client, *_: Any, **message: Any) -> Training:
        """The job: a generator that asks for its training and is sent what came of it, whoever does it."""
        trained = yield Fit(self.module(client, **message), client)
        return Update(trained.weights, memory=trained.memory)

    def module(self, client: Client, *_: Any, **message: Any) -> Classifier:
        """What a client trains: the network it was sent, and `loss` with the message as its facts."""
        return Classifier(self.net.load(message["weights"]), self.local, client.t, self.loss, **message)

    def loss(self, net: nn.Module, batch: Batch, *_: Any, **message: Any) -> Tensor:
        return F.cross_entropy(net(batch.x), batch.y)

    def aggregate(self, state: Any, updates: list[Update], fed: Federation) -> Weights:
        return mean([u.weights for u in updates if u.weights is not None], [u.size or 0 for u in updates])
