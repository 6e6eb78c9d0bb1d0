"""DaAgg, FedNoRo's distance-aware aggregation (equations 6 and 7)."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, get_args

from torch import Tensor

from fnll.errors import UserError, nearest
from fnll.weights import Weights

log = logging.getLogger(__name__)

STATISTICS = ("running_mean", "running_var")  # BatchNorm's: part of a state, but not of a model's weights
Distance = Literal["paper", "official", "none"]


def distance_aware(
    weights: Sequence[Weights], sizes: Sequence[int], noisy: Sequence[bool] | AbstractSet[int], variant: str = "paper"
) -> list[float]:
    """Aggregation weights N_i e^{−D(i)} / Σ_j N_j e^{−D(j)}, which sum to 1.

    d(i) is the distance from model i to the nearest clean one, so 0 for clean clients, and D = d / max d. `noisy` says
    which models come from noisy clients: a flag for each, or the set of their positions.

    `paper`: the L2 norm over all weights. `official`: the sum over tensors of their L2 norms, BatchNorm's running
    statistics included. Both leave integer entries out. `none`: D = 0, which is FedAvg. Without clean or without noisy
    models, and when no model differs from the clean ones, D = 0 too.
    """
    scaled = discounted(weights, sizes, noisy, variant)
    total = sum(scaled)
    if not total > 0:
        raise ValueError(f"aggregation needs at least one sample, got sizes {list(sizes)}")
    return [value / total for value in scaled]


def discounted(
    weights: Sequence[Weights], sizes: Sequence[int], noisy: Sequence[bool] | AbstractSet[int], variant: str
) -> list[float]:
    """N_i e^{−D(i)}: exactly the sizes where D is 0, so that aggregation then is FedAvg's bit for bit."""
    if variant not in get_args(Distance):
        raise UserError(f"there is no distance {variant!r}; {nearest(variant, get_args(Distance))}")
    suspects = _flags(noisy, len(weights))
    clean = [state for state, suspect in zip(weights, suspects, strict=True) if not suspect]
    if variant == "none":
        return [float(size) for size in sizes]
    if not clean or len(clean) == len(weights):
        _say_once(logging.INFO, "a cohort of only clean or only noisy clients is averaged as in FedAvg")
        return [float(size) for size in sizes]
    d = [
        min(distance(state, other, variant) for other in clean) if suspect else 0.0
        for state, suspect in zip(weights, suspects, strict=True)
    ]
    furthest = max(d)
    if furthest == 0:
        _say_once(logging.WARNING, "no noisy client's model differs from a clean one; DaAgg weighs none of them down")
        return [float(size) for size in sizes]
    return [size * math.exp(-value / furthest) for size, value in zip(sizes, d, strict=True)]


def distance(left: Mapping[str, Tensor], right: Mapping[str, Tensor], variant: str) -> float:
    """Between two states, computed in float64; see `distance_aware` for the two forms."""
    names = [name for name, value in left.items() if value.is_floating_point()]
    if variant == "paper":
        names = [name for name in names if not name.endswith(STATISTICS)]
    norms = [float((left[name].double() - right[name].double()).norm()) for name in names]
    return math.hypot(*norms) if variant == "paper" else sum(norms)


def _flags(noisy: Sequence[bool] | AbstractSet[int], count: int) -> list[bool]:
    if isinstance(noisy, AbstractSet):
        if odd := sorted(i for i in noisy if not 0 <= i < count):
            raise ValueError(f"there are {count} models, so no noisy one at position {odd[0]}")
        return [i in noisy for i in range(count)]
    if len(noisy) != count:
        raise ValueError(f"there are {count} models and {len(noisy)} flags that say which are noisy")
    return [bool(flag) for flag in noisy]


@functools.cache
def _say_once(level: int, message: str) -> None:
    log.log(level, "%s (logged once)", message)
