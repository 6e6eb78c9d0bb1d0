"""FedCorr+LA: FedCorr whose clients always train on adjusted logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from fnll.methods.fedcorr import FedCorr
from fnll.types import Client


@dataclass(frozen=True, kw_only=True)
class FedCorrLA(FedCorr):
    """Xu et al., CVPR 2022, with the logit adjustment of Menon et al., ICLR 2021: a baseline of FedNoRo, IJCAI 2023.

    "Logit adjustment is employed in the local training phase of FedCorr" (FedNoRo, appendix C): wherever FedCorr's
    clients minimise cross-entropy of f, in stage 1 with mixup and in stages 2 and 3, they minimise that of f + log π_k.
    π_k are the shares of classes among the labels that client k has now, so that relabelling moves them.

    Scores, sample losses, new labels and the global model come from f as it is. Settings are FedCorr's, and
    `prior_floor`.
    """

    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "without stages 1 and 2, no mixup in stage 3, every class equally often": {
            "passes": 0,
            "finetune": 0,
            "mixup_stages": [1],
        }
    }

    prior_floor: Annotated[int, Field(ge=0, description="samples a class is taken to have at least; 0: as it is")]

    def prior(self, client: Client) -> Tensor:
        return client.class_counts().clamp_min(self.prior_floor)
