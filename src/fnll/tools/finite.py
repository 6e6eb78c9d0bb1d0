"""Whether numbers, at any depth of what holds them, can still be computed with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import numpy as np
import torch
from torch import Tensor

from fnll.errors import UserError

# What no number brings about, whatever numbers there are.
NOT_NUMERICAL = (UserError, OSError, MemoryError, AssertionError, AttributeError, NameError, ImportError)
LOST = math.sqrt(torch.finfo(torch.float32).max)  # beyond it a network's activations overflow


def beyond_numbers(*things: object) -> bool:
    """Whether any number in tensors, arrays, mappings, lists and dataclasses is not finite, or too large to square."""
    return not all(_usable(value) for thing in things for value in _numbers(thing))


def _numbers(value: object) -> Iterator[Tensor | np.ndarray | float]:
    if isinstance(value, (Tensor, np.ndarray, float)):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _numbers(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _numbers(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _numbers(getattr(value, field.name))


def _usable(value: Tensor | np.ndarray | float) -> bool:
    if isinstance(value, float):
        return abs(value) < LOST  # false for NaN, too
    tensor = torch.as_tensor(value) if not isinstance(value, np.ndarray) or value.dtype.kind in "fiub" else None
    return tensor is None or not tensor.is_floating_point() or bool((tensor.abs() < LOST).all())
