"""Arithmetic on network states: dictionaries from names to detached CPU tensors.

One rule for buffers, the same everywhere: floating entries (BatchNorm's running statistics included) are treated like
parameters; integer entries (BatchNorm's batch counter) are averaged in floating point and truncated, as PyTorch does
when the reference codes load such an average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fnll.errors import NotFiniteError

Weights = dict[str, Tensor]

ROUNDING = 1e-9  # how far rounding may take a sum of shares from the whole number that it stands for


def snapshot(module: nn.Module) -> Weights:
    """The state of `module` as detached CPU copies that share storage with nothing."""
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in module.state_dict().items()}


def tree(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Weights:
    """Apply `function` name by name; integer entries are computed in float64 and truncated back."""
    first, *others = trees
    for other in others:
        if other.keys() != first.keys():
            odd = sorted(first.keys() ^ other.keys())
            raise ValueError(f"the states have different entries: {', '.join(odd[:5])}")
    return {name: _entry(function, [one[name] for one in trees]) for name in first}


def _entry(function: Callable[..., Tensor], values: list[Tensor]) -> Tensor:
    if values[0].is_floating_point():
        return function(*values)
    result = function(*(value.double() for value in values))
    whole = result.round()  # a third of 3, thrice, may come out as 2.9999999999999996, and is 3
    return torch.where((result - whole).abs() < ROUNDING, whole, result).to(values[0].dtype)  # .to truncates


def mean(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> Weights:
    """The weighted mean of `states` (McMahan et al. 2017, algorithm 1), summed in float64 in the order given.

    float64 makes the mean of equal states that state, bit for bit.
    """
    if not states:
        raise ValueError("there are no states to average")
    weights = [1.0] * len(states) if weights is None else [float(weight) for weight in weights]
    if not all(map(math.isfinite, weights)):
        raise NotFiniteError(f"averaging needs weights that are finite, got {weights}")
    total = sum(weights)
    if not total > 0 or min(weights) < 0:
        raise ValueError(f"averaging needs non-negative weights with a positive sum, got {weights}")
    shares = [weight / total for weight in weights]

    def average(*values: Tensor) -> Tensor:
        result = torch.zeros(values[0].shape, dtype=torch.float64)
        for share, value in zip(shares, values, strict=True):
            result.add_(value, alpha=share)
        return result.to(values[0].dtype)

    return tree(average, *states)


def median(states: Sequence[Mapping[str, Tensor]]) -> Weights:
    """The coordinate-wise median; for an even count the mean of the two middle values."""

    def middle(*values: Tensor) -> Tensor:
        ordered = torch.stack(values).sort(dim=0).values
        half = len(values) // 2
        return ordered[half].clone() if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2

    return tree(middle, *states)


def add(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Weights:
    """`left + right`, entry by entry."""
    return tree(torch.add, left, right)


def sub(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Weights:
    """`left - right`, entry by entry."""
    return tree(torch.sub, left, right)


def scale(state: Mapping[str, Tensor], factor: float) -> Weights:
    """`factor * state`, entry by entry."""
    return tree(lambda value: value * factor, state)


def zeros_like(state: Mapping[str, Tensor]) -> Weights:
    """A state of zeros with the names, shapes and types of `state`."""
    return {name: torch.zeros_like(value) for name, value in state.items()}


def squared_distance(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tensor:
    """The squared Euclidean distance over the floating entries that both have; differentiable in either argument."""
    terms = [
        (left[name] - right[name]).square().sum() for name in left if name in right and left[name].is_floating_point()
    ]
    return torch.stack(terms).sum()


def nbytes(value: object) -> int:
    """Bytes of `value` on the wire: tensors by their elements, numbers as eight, containers by their contents."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(nbytes(part) for part in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return sum(nbytes(part) for part in value)
    if isinstance(value, str):
        return len(value.encode())
    if value is None:
        return 0
    return int(getattr(value, "nbytes", 8))


def all_finite(state: Mapping[str, Tensor]) -> bool:
    """Whether no entry holds a NaN or an infinity."""
    floating = [value for value in state.values() if value.is_floating_point() and value.numel()]
    # The extremes of a tensor with a NaN are NaN: one pass, where isfinite(value).all() takes several.
    return all(bool(torch.isfinite(torch.stack(torch.aminmax(value))).all()) for value in floating)


def join(**parts: Mapping[str, Tensor]) -> Weights:
    """Several states as one, with the keys of part `a` prefixed by `a.` (the form of an `nn.ModuleDict`)."""
    return {f"{prefix}.{name}": value for prefix, part in parts.items() for name, value in part.items()}


def part(state: Mapping[str, Tensor], prefix: str) -> Weights:
    """The part of a joined state that `prefix` names."""
    found = {name.removeprefix(f"{prefix}."): value for name, value in state.items() if name.startswith(f"{prefix}.")}
    if not found:
        raise KeyError(f"no part {prefix!r} in a state with entries {sorted(state)[:3]}")
    return found
