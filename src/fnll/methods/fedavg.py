"""FedAvg: the baseline, and the template of every method that trains, uploads and averages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fnll.federation import Federation
from fnll.local import Classifier, LocalSpec, fit
from fnll.net import Net
from fnll.types import Client, State, Update
from fnll.weights import Weights, mean


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

    Algorithm 1: each round the server samples m = max(C·K, 1) clients, each runs E epochs of SGD from the global
    weights w, and the server averages what comes back, weighted by sample counts n_k.

    Symbols: m `cohort`; E, B, η `local`.
    """

    net: Net
    local: LocalSpec
    cohort: int

    def init(self, fed: Federation, weights: Weights | None = None) -> State:
        """Fresh weights, the same for every method and seed; or the weights that an outer method hands over."""
        return State(self.net.fresh(fed.seed("net")) if weights is None else weights)

    def round(self, state: Any, fed: Federation) -> State:
        updates = fed.map(self.train, self.select(state, fed), weights=state.weights)
        return replace(state, weights=self.aggregate(state, updates))

    def model(self, state: State) -> nn.Module:
        return self.net.load(state.weights)

    # What a simple method overrides

    def select(self, state: Any, fed: Federation) -> list[int]:
        return fed.sample(self.cohort)

    def module(self, client: Client, weights: Weights) -> Classifier:
        return Classifier(self.net.load(weights), self.local, client.t)

    def aggregate(self, state: Any, updates: list[Update]) -> Weights:
        return mean([u.weights for u in updates if u.weights is not None], [u.size or 0 for u in updates])

    # The job: prepare, fit, finish; an executor may vectorise the middle

    def train(self, client: Client, **message: Any) -> Update:
        module, client = self.prepare(client, **message)
        weights, optimizer = fit(module, client, remembered=self.remembered(client))
        return replace(self.finish(module, client, weights), memory={"optimizer": optimizer} if optimizer else {})

    def prepare(self, client: Client, **message: Any) -> tuple[Classifier, Client]:
        return self.module(client, **message), client

    def finish(self, module: Classifier, client: Client, weights: Weights) -> Update:
        return Update(weights)

    def remembered(self, client: Client) -> Weights | None:
        kept = client.memory.get("optimizer")
        return kept if isinstance(kept, dict) else None
