"""Bit-for-bit equality of states, memories, updates and methods."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def canonical(value: Any) -> Any:
    """A nested tuple that is equal for two values exactly if they are equal bit for bit."""
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous()
        return ("tensor", str(array.dtype), tuple(array.shape), array.flatten().view(torch.uint8).numpy().tobytes())
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return ("map", tuple((canonical(key), canonical(part)) for key, part in value.items()))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(canonical(part) for part in value))
    if isinstance(value, (set, frozenset)):
        return ("set", tuple(canonical(part) for part in sorted(value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return (type(value).__qualname__, tuple((name, canonical(getattr(value, name))) for name in names))
    if isinstance(value, functools.partial):
        return ("partial", value.func, canonical(value.args), canonical(value.keywords))
    if isinstance(value, float):
        return ("float", value.hex())
    return value


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal bit for bit."""
    return canonical(left) == canonical(right)


def apart(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> str:
    """Where two network states differ most, in words."""
    if left.keys() != right.keys():
        return f"their entries differ: {', '.join(sorted(left.keys() ^ right.keys()))}"
    far = {name: float((left[name].double() - value.double()).abs().max()) for name, value in right.items()}
    worst = max(far, key=lambda name: far[name])
    return f"{worst} is up to {far[worst]:.2g} away"
