"""FedProx: FedAvg with a proximal term in the local objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn

from fnll.methods.fedavg import FedAvg
from fnll.tools.proximal import ProxForm, prox_penalty
from fnll.types import Batch
from fnll.weights import Weights


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    Clients minimise F_k(w) + (μ/2)‖w − w_g‖² (equation 2), so that they stay near the global weights w_g.

    Symbols: μ `mu`. The released codes of this field use other penalties under the same name; `form` has them:
    `half_squared` is the paper's, `norm` nearly FedCorr's code (μ‖w − w_g‖, there without each epoch's first batch),
    `sum_tensor_norms` FNBench's (μ Σ‖·‖ tensor by tensor; its factor ½ belongs in `mu`).
    """

    limit_laws: ClassVar[dict[str, dict[str, float]]] = {"μ = 0 is FedAvg": {"mu": 0.0}}

    mu: Annotated[float, Field(ge=0, description="μ weighs the proximal term; 0 is FedAvg")]
    form: ProxForm

    def loss(self, net: nn.Module, batch: Batch, *, weights: Weights) -> Tensor:
        loss = super().loss(net, batch)
        if self.mu == 0:  # exactly FedAvg: 0 times a penalty would still cost a backward pass
            return loss
        return loss + self.mu * prox_penalty(dict(net.named_parameters()), weights, self.form)
