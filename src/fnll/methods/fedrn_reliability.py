"""Who is reliable for whom, and how votes are counted: equations 3, 4, 5 and 7 of FedRN."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fnll.system.notices import warn_once
from fnll.tools import min_max

log = logging.getLogger(__name__)

NEUTRAL = 0.5  # a score that says nothing: where all clients are equal, or one has not reported yet


def expertise(accuracy: Tensor) -> Tensor:
    """Exp (equation 4): training accuracies scaled to [0, 1] over the clients that have one; 1/2 where it is NaN."""
    known = ~accuracy.isnan()
    scores = torch.full_like(accuracy, NEUTRAL)
    scores[known] = _scaled(accuracy[known], "training accuracies")
    return scores


def cosines(outputs: Tensor, rows: Sequence[int] | None = None) -> Tensor:
    """The cosines of answers (N, C) to the noise image (equation 5, not yet scaled): of these `rows`, or of everyone.

    (rows, N) in float64. A round asks for its cohort's alone: N² numbers would be most of a round of 2,000 clients.
    """
    directions = F.normalize(outputs.double(), dim=1)
    own = directions if rows is None else directions[torch.tensor(rows, dtype=torch.int64)]
    pairs = (own @ directions.T).nan_to_num(nan=0.0)
    return pairs.round(decimals=12)  # or the scaling would blow up the rounding errors of equal answers


def reliability(target: int, expertise: Tensor, cosines: Tensor, alpha: float) -> Tensor:
    """R(c, n) = α Exp(n) + (1 − α) Sim(c, n) (equation 3) of client c = `target` with each client n, itself included.

    Sim is `cosines` (N,), those of c with everyone, scaled to [0, 1] over all clients; Sim(c, c) = 1 by definition.
    """
    similarity = _scaled(cosines, "similarities")
    similarity[target] = 1.0
    return alpha * expertise + (1 - alpha) * similarity


def most_reliable(scores: Tensor, target: int, k: int) -> list[int]:
    """The k clients with the highest scores, best first; equal scores go to the lower number."""
    best = scores.argsort(descending=True, stable=True)[: k + 1].tolist()
    return [n for n in best if n != target][:k]


def shares(scores: Sequence[float]) -> list[float]:
    """R′ (equation 7): scores as shares of 1; equal shares if all are 0."""
    total = sum(scores)
    if total > 0:
        return [score / total for score in scores]
    warn_once(log, "a client and its neighbours all have reliability 0; they vote with equal weight")
    return [1 / len(scores)] * len(scores)


def ensemble(posteriors: Tensor, shares: Sequence[float]) -> Tensor:
    """p(clean | x) = Σ R′(c, n) p(g | ℓ(x, ỹ; Θ_n)) (equation 7); `posteriors` is (voters, samples)."""
    return torch.tensor(shares, dtype=torch.float64) @ posteriors.double()


def _scaled(values: Tensor, what: str) -> Tensor:
    if len(values) and bool(values.min() == values.max()):
        warn_once(log, f"all {what} are equal; each counts {NEUTRAL}")
    return min_max(values, when_flat=NEUTRAL)
