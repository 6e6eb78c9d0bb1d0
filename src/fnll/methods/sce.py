"""SCE: FedAvg with symmetric cross-entropy in the local objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from fnll.methods.fedavg import FedAvg
from fnll.tools import symmetric_cross_entropy
from fnll.types import Batch


@dataclass(frozen=True, kw_only=True)
class SymmetricCrossEntropy(FedAvg):
    """Wang et al., "Symmetric Cross Entropy for Robust Learning with Noisy Labels", ICCV 2019, in FedAvg.

    Clients minimise α H(q, p) + β H(p, q): cross-entropy and its reverse, p the prediction and q the one-hot label,
    whose zeros count as 1e-4 in the logarithm.

    Symbols: α `alpha`; β `beta`. The paper's A, the value of log 0, is log 1e-4; only the product of A and β counts.
    """

    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {"α = 1, β = 0 is FedAvg": {"alpha": 1.0, "beta": 0.0}}

    alpha: Annotated[float, Field(ge=0, description="α weighs cross-entropy")]
    beta: Annotated[float, Field(ge=0, description="β weighs reverse cross-entropy; 0, with α = 1, is FedAvg")]

    def loss(self, net: nn.Module, batch: Batch, **_: Any) -> Tensor:
        return symmetric_cross_entropy(net(batch.x), batch.y, self.alpha, self.beta)
