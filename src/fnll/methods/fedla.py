"""FedLA: FedAvg with logit adjustment in the local objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fnll.local import Classifier
from fnll.methods.fedavg import FedAvg
from fnll.tools import logit_adjusted
from fnll.types import Batch, Client
from fnll.weights import Weights


@dataclass(frozen=True, kw_only=True)
class FedLA(FedAvg):
    """Menon et al., "Long-Tail Learning via Logit Adjustment", ICLR 2021, on each client of FedAvg.

    Clients minimise CE(f(x) + log π_k, y), where π_k is the class distribution of the labels that client k trains on;
    the global model is judged by its plain logits f. A baseline of FedNoRo, and FedNoRo's first stage run to the end.
    """

    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {"every class equally often": {}}

    def module(self, client: Client, weights: Weights) -> Classifier:
        return Classifier(
            self.net.load(weights), self.local, client.t, adjusted_cross_entropy, counts=client.class_counts()
        )


def adjusted_cross_entropy(net: nn.Module, batch: Batch, counts: Tensor) -> Tensor:
    """Cross-entropy of f + log π, π from the `counts` (C,); a class without samples has probability 0, no gradient."""
    return F.cross_entropy(logit_adjusted(net(batch.x), counts), batch.y)
