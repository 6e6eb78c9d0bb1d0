"""Power-of-Choice: of several candidates, those with the largest loss train."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field

from fnll.errors import require
from fnll.federation import Federation
from fnll.local import Predict, Training
from fnll.methods.fedavg import FedAvg
from fnll.types import Client, Update
from fnll.weights import Weights, mean


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(FedAvg):
    """Cho et al., "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022.

    π_pow-d: the server draws d candidates without replacement, client k with probability ∝ n_k, sends them its model w,
    and the m candidates with the largest local loss F_k(w) train; the new model is their unweighted mean.

    Symbols: d `candidates`; m `cohort`. FedCorr does not say how its candidates are drawn and its clients weighed, so
    both are settings (`candidate_odds`, `client_weights`).
    """

    privileges: ClassVar[tuple[str, ...]] = (
        "one loss from each of d candidates every round, of which only m train: d − m more clients receive the model",
    )
    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "d = m, uniform candidates and n_k weights": {
            "candidates": 3,
            "candidate_odds": "uniform",
            "client_weights": "samples",
        }
    }

    candidates: Annotated[int, Field(ge=1, description="d, the clients that are asked for their loss each round")]
    candidate_odds: Literal["samples", "uniform"]
    client_weights: Literal["equal", "samples"]
    first_round: Literal["ask", "uniform"]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.candidates >= self.cohort_size,
            f"method.candidates must be at least the {self.cohort_size} clients of a round, got {self.candidates}; "
            "they are chosen among the candidates",
        )

    def select(self, state: Any, fed: Federation) -> list[int]:
        if self.first_round == "uniform" and fed.t == 0:
            return super().select(state, fed)
        odds = fed.sizes if self.candidate_odds == "samples" else None
        asked = fed.sample(self.candidates, p=odds)  # for FedAvg's purpose: its very cohort if d = m
        losses = [float(u.report["loss"]) for u in fed.map(self.probe, asked, weights=state.weights)]
        fed.record(candidate_losses=dict(zip(asked, losses, strict=True)))
        return hardest(asked, losses, self.cohort_size)

    def probe(self, client: Client, weights: Weights) -> Training:
        """F_k(w): the mean cross-entropy of all of a client's samples, as they are, on the labels it trains on."""
        logits = yield Predict(self.net.load(weights), client)
        losses = F.cross_entropy(logits, client.data.y, reduction="none")
        return Update(report={"loss": float(losses.double().mean())})

    def aggregate(self, state: Any, updates: list[Update], fed: Federation) -> Weights:
        if self.client_weights == "samples":
            return super().aggregate(state, updates, fed)
        return mean([u.weights for u in updates if u.weights is not None])


def hardest(clients: Sequence[int], losses: Sequence[float], count: int) -> list[int]:
    """The `count` clients with the largest losses, in order of their numbers; among equals, lower numbers first.

    A loss that is not a number counts as the largest: such a client's data is what the model copes with least.
    """
    height = {k: math.inf if math.isnan(loss) else loss for k, loss in zip(clients, losses, strict=True)}
    return sorted(sorted(height, key=lambda k: (-height[k], k))[:count])
