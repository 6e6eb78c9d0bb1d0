"""Local intrinsic dimensionality of predictions (FedCorr, equation 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from fnll.errors import require_integer
from fnll.tools.variant import Variant, require_variant

EPSILON = 1e-6  # not negligible: it pulls the estimate towards 0 where predictions saturate, in both forms
DISTANCES_AT_ONCE = 2**20  # 8 MB of float64
SPARE = 12  # neighbours that are looked at beyond those asked for


def lid(probs: Tensor, k: int = 20, variant: Variant = "paper") -> Tensor:
    """The maximum-likelihood estimate of each prediction's local intrinsic dimensionality, (n, C) → (n,) float64.

    With r_i the distance to the i-th nearest other prediction, it is −k / (Σ_i log(r_i / (r_k + ε)) + ε). Distances are
    float64 differences: float32 matrix products would make neighbours of saturated predictions coincide. A prediction
    that occurs twice has r_1 = 0 and estimate 0.

    The forms differ where n − 1 < k. `paper` uses k' = min(k, n − 1) throughout and gives NaN where k' < 2, since one
    distance alone says nothing about dimension; `official` takes the neighbours there are but keeps the numerator k.
    """
    require_variant(variant)
    require_integer("k", k, 2, "LID compares the distances of at least two neighbours")
    points = probs.detach().to("cpu", torch.float64)
    n = len(points)
    neighbours = min(k, n - 1)
    if neighbours < (2 if variant == "paper" else 1):
        return torch.full((n,), torch.nan, dtype=torch.float64)
    r = _nearest_distances(points, neighbours)
    log_ratios = (r / (r[:, -1:] + EPSILON)).log().sum(dim=1)
    return -(neighbours if variant == "paper" else k) / (log_ratios + EPSILON)


def _nearest_distances(points: Tensor, count: int) -> Tensor:
    """Ascending Euclidean distances to the `count` nearest other points, (n, count), a block of rows at a time.

    Matrix products, which round, propose more neighbours than asked for; differences decide among those. A row is
    searched in full where rounding may have kept a neighbour out.
    """
    n, dimensions = points.shape
    squares = points.square().sum(dim=1)
    rounding = 8 * (dimensions + 2) * torch.finfo(points.dtype).eps * float(squares.max())  # of a squared distance
    proposed = min(n, count + 1 + SPARE)
    blocks = []
    for rows in torch.arange(n).split(max(1, DISTANCES_AT_ONCE // n)):
        block = points[rows]
        rough = torch.addmm(squares, block, points.T, alpha=-2).add_(squares[rows, None])
        best = rough.topk(proposed, dim=1, largest=False, sorted=False)
        nearest = _nearest(block[:, None], points[best.indices], count)[:, 0]
        unsure = nearest[:, -1].square() > best.values.amax(dim=1) - rounding
        if proposed < n and bool(unsure.any()):
            nearest[unsure] = _nearest(block[unsure], points, count)
        blocks.append(nearest)
    return torch.cat(blocks)


def _nearest(block: Tensor, points: Tensor, count: int) -> Tensor:
    """Ascending distances from each of `block` to the nearest `count` of `points`, by differences."""
    distances = torch.cdist(block, points, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.topk(count + 1, dim=-1, largest=False, sorted=True).values
    return nearest[..., 1:]  # the first is the point itself, at distance 0, or a twin of it
