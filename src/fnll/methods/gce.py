"""GCE: FedAvg with generalised cross-entropy in the local objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from fnll.methods.fedavg import FedAvg
from fnll.tools import generalised_cross_entropy
from fnll.types import Batch


@dataclass(frozen=True, kw_only=True)
class GeneralisedCrossEntropy(FedAvg):
    """Zhang and Sabuncu, "Generalized Cross Entropy Loss for ... Noisy Labels", NeurIPS 2018, in FedAvg.

    Clients minimise L_q = (1 − p_y^q) / q, which weighs the gradient of cross-entropy by p_y^q: samples whose label the
    network does not believe count less. q → 0 is cross-entropy, q = 1 half the mean absolute error.

    Symbols: q `q`.
    """

    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {"q = 0, the limit, is FedAvg": {"q": 0.0}}

    q: Annotated[float, Field(ge=0, le=1, description="q: 0 is cross-entropy, 1 the mean absolute error")]

    def loss(self, net: nn.Module, batch: Batch, **_: Any) -> Tensor:
        return generalised_cross_entropy(net(batch.x), batch.y, self.q)
