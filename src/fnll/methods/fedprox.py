"""FedProx: FedAvg with a proximal term in the local objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fnll.errors import require_at_least
from fnll.local import Classifier, LocalSpec
from fnll.methods.fedavg import FedAvg
from fnll.proximal import ProxForm, prox_penalty, require_prox_form
from fnll.types import Batch, Client
from fnll.weights import Weights


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    Clients minimise F_k(w) + (μ/2)‖w − w_g‖² (equation 2), so that they stay near the global weights w_g.

    Symbols: μ `mu`. The released codes of this field use other penalties under the same name; `form` has them:
    `half_squared` is the paper's, `norm` FedCorr's code (μ‖w − w_g‖), `sum_tensor_norms` FNBench's (μ Σ‖·‖ tensor by
    tensor; its factor ½ belongs into `mu`).
    """

    limit_laws: ClassVar[dict[str, dict[str, float]]] = {"μ = 0 is FedAvg": {"mu": 0.0}}

    mu: float
    form: ProxForm

    def __post_init__(self) -> None:
        require_at_least("method.mu", self.mu, 0, "μ weighs the proximal term; 0 is FedAvg")
        require_prox_form(self.form, "method.form")

    def module(self, client: Client, weights: Weights) -> Classifier:
        return Proximal(self.net.load(weights), self.local, client.t, anchor=weights, mu=self.mu, form=self.form)


class Proximal(Classifier):
    """Cross-entropy plus μ times a penalty on the distance to `anchor`."""

    per_client = ()

    def __init__(self, net: nn.Module, spec: LocalSpec, t: int, *, anchor: Weights, mu: float, form: ProxForm) -> None:
        super().__init__(net, spec, t)
        self.anchor, self.mu, self.form = anchor, mu, form

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if self.mu == 0:  # exactly FedAvg: 0 times a penalty would still cost a backward pass
            return loss
        return loss + self.mu * prox_penalty(dict(self.net.named_parameters()), self.anchor, self.form)
