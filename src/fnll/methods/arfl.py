"""ARFL: robust aggregation; a robust line through each weight's values says which clients are off, and how far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fnll.federation import Federation
from fnll.methods.fedavg import FedAvg
from fnll.types import Update
from fnll.weights import Weights, all_finite, mean

SLOPES_AT_ONCE = 1 << 22  # pairs of clients times coordinates that are fitted together: 32 MB


@dataclass(frozen=True, kw_only=True)
class ARFL(FedAvg):
    """Fu et al., "Attack-Resistant Federated Learning with Residual-based Reweighting", 2019 (arXiv 1912.11464).

    For every weight the server sorts the n values that came back and fits a line through (rank, value) by repeated
    medians. A value's residual, on a robust scale, gives it a confidence ω in (0, 1]; values with ω < δ are replaced by
    the line's. A client's share of the average is the square of its summed confidence, in which a weight counts as much
    as the confidences in it differ. Sample counts do not matter.

    Symbols: λ `lam`; δ `delta`. From the authors' code where the paper leaves open how confidences are summed.
    """

    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "λ beyond every residual, clients of one size": {"lam": 1e12}
    }

    lam: Annotated[float, Field(gt=0, description="λ, how far a value may lie from the line and be trusted fully")]
    delta: Annotated[float, Field(ge=0, le=1, description="δ, the confidence below which the line's value is taken")]

    def aggregate(self, state: Any, updates: list[Update], fed: Federation) -> Weights:
        sent = [u for u in updates if u.weights is not None]
        usable = [u for u in sent if u.weights is not None and all_finite(u.weights)] or sent
        models = [u.weights for u in usable if u.weights is not None]
        names = [name for name, value in models[0].items() if value.dim() and value.is_floating_point()]
        stack = torch.stack([torch.cat([model[name].flatten() for name in names]) for model in models])
        restricted, shares = _reweighted(stack, self.lam, self.delta)
        fed.record(agg_weights={u.client: share for u, share in zip(usable, shares.tolist(), strict=True)})
        return mean(
            [_replaced(model, names, row) for model, row in zip(models, restricted, strict=True)], shares.tolist()
        )


def residual_reweighting(stack: Tensor, lam: float, delta: float) -> tuple[Tensor, Tensor]:
    """`stack` (n clients, d weights) with outlying values pulled onto their lines, and the clients' shares (n,).

    Computed in float64. Fewer than three clients have no line to be off: they keep their values and share equally; so
    do clients of which nobody is off anywhere. Equal values have equal (mean) ranks, so that equal clients have equal
    shares, whatever their order.
    """
    restricted, shares = _reweighted(stack, lam, delta)
    return restricted, shares.to(stack.dtype)


def _reweighted(stack: Tensor, lam: float, delta: float) -> tuple[Tensor, Tensor]:
    n = len(stack)
    equal = torch.full((n,), 1 / n, dtype=torch.float64)
    if n < 3:
        return stack.clone(), equal
    summed = torch.zeros(n, dtype=torch.float64)
    restricted = torch.empty_like(stack)
    width = max(1, SLOPES_AT_ONCE // n**2)
    for start in range(0, stack.shape[1], width):
        values = stack[:, start : start + width]
        line, confidence = line_and_confidence(values.T.double().contiguous(), lam)
        restricted[:, start : start + width] = torch.where((confidence < delta).T, line.T.to(stack.dtype), values)
        # A weight where everyone is trusted alike says nothing about who is off: it counts by the deviation.
        summed += (confidence * confidence.std(dim=1, keepdim=True)).sum(dim=0)
    if not summed.max() > 0:
        return restricted, equal
    squares = (summed / summed.max()).square()
    return restricted, squares / squares.sum()


def line_and_confidence(values: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """Of each row of `values` (d, n): where its values should lie on the row's line, and the confidence in each."""
    n = values.shape[1]
    ordered = values.sort(dim=1).values
    slope, middle = repeated_median(ordered), median(ordered)
    below, upto = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    offset = (below + upto - 1) / 2 - (n - 1) / 2  # ranks from 0, equal values sharing their mean; centred
    line = middle[:, None] + slope[:, None] * offset
    residual = (values - line).abs()
    scale = median(residual.sort(dim=1).values[:, 1:])  # two values fit any line: the smallest residual tells nothing
    tau = 1.4826 * (1 + 5 / (n - 1)) * scale + 1e-7
    leverage = 1 / n + offset.square() * 12 / (n * (n * n - 1))  # the hat matrix's diagonal for ranks 0 to n − 1
    bound = lam * (2 / n) ** 0.5 * (1 - leverage).sqrt() * tau[:, None]
    return line, torch.where(residual <= bound, torch.ones_like(bound), bound / residual)


def repeated_median(ordered: Tensor) -> Tensor:
    """Siegel's slope of each row of sorted values (d, n) over 0 to n − 1: the median over i of those over j ≠ i."""
    n = ordered.shape[1]
    others = torch.tensor([[j for j in range(n) if j != i] for i in range(n)], device=ordered.device)
    run = torch.arange(n, device=ordered.device)[:, None] - others
    slopes = (ordered[:, :, None] - ordered[:, others]) / run
    return median(median(slopes.sort(dim=2).values).sort(dim=1).values)


def median(ordered: Tensor) -> Tensor:
    """The median along the last dimension of sorted values; of an even count the mean of the two in the middle."""
    half = ordered.shape[-1] // 2
    return ordered[..., half] if ordered.shape[-1] % 2 else (ordered[..., half - 1] + ordered[..., half]) / 2


def _replaced(model: Weights, names: Sequence[str], row: Tensor) -> Weights:
    """`model` with the entries that `names` lists taken from the flat `row`."""
    parts = row.split([model[name].numel() for name in names])
    return model | {name: part.view_as(model[name]) for name, part in zip(names, parts, strict=True)}
