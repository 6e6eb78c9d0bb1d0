"""Median: FedAvg with the coordinate-wise median in the place of the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fnll import weights as arithmetic
from fnll.federation import Federation
from fnll.methods.fedavg import FedAvg
from fnll.types import Update
from fnll.weights import Weights

EvenCount = Literal["mean_of_middles", "lower_middle"]


@dataclass(frozen=True, kw_only=True)
class Median(FedAvg):
    """Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.

    Algorithm 1, option I, on weights as FedCorr uses it: each entry of the global model is the median of the m entries
    that came back. Sample counts do not matter.

    For an even m the median is the mean of the two middle values (`even_count: mean_of_middles`, as in the code that
    FedCorr used) or the smaller of them (`lower_middle`: `torch.median`, as in FNBench).
    """

    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # one client a round makes it FedAvg

    even_count: EvenCount

    def aggregate(self, state: Any, updates: list[Update], fed: Federation) -> Weights:
        return coordinate_median([u.weights for u in updates if u.weights is not None], self.even_count)


def coordinate_median(states: Sequence[Mapping[str, Tensor]], even_count: EvenCount) -> Weights:
    """The median of each entry over `states`; running statistics like weights, counters truncated."""
    if even_count == "mean_of_middles":
        return arithmetic.median(states)
    return arithmetic.tree(lambda *values: torch.stack(values).sort(dim=0).values[(len(values) - 1) // 2], *states)
