"""Penalties that keep a client near the weights it received: FedProx's, FedCorr's, and those of released codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from fnll.errors import UserError, nearest

ProxForm = Literal["half_squared", "squared", "norm", "sum_tensor_norms"]


def require_prox_form(form: str, name: str) -> None:
    """Demand a known form; `name` is the config key."""
    if form not in get_args(ProxForm):
        raise UserError(
            f"{name} must be one of {', '.join(get_args(ProxForm))}, got {form!r}: {nearest(form, get_args(ProxForm))}"
        )


def prox_penalty(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor], form: ProxForm) -> Tensor:
    """The distance between `params` (trainable parameters by name) and a constant `anchor`; differentiable in `params`.

    | form | value | who |
    |---|---|---|
    | half_squared | ½‖w − w_g‖² | FedProx (Li et al. 2020), equation 2 |
    | squared | ‖w − w_g‖² | FedCorr, equation 5 |
    | norm | ‖w − w_g‖ over all parameters together | FedCorr's code, there not in an epoch's first batch |
    | sum_tensor_norms | Σ ‖w − w_g‖ tensor by tensor | FNBench |

    Entries of `anchor` that are not in `params` (buffers) do not count. At w = w_g the norms have gradient 0, a
    subgradient, where a plain square root would give NaN. One product per tensor and no `torch._foreach`: as quick as
    that on small networks, quicker on large ones, and `torch.func.vmap` can see through it.
    """
    drift = [value - anchor[name].detach().to(value) for name, value in params.items()]
    if form in ("half_squared", "squared"):
        flat = [part.flatten() for part in drift]
        total = torch.stack([torch.dot(part, part) for part in flat]).sum()
        return total / 2 if form == "half_squared" else total
    norms = torch.stack([torch.linalg.vector_norm(part) for part in drift])
    if form == "norm":
        return torch.linalg.vector_norm(norms)
    if form == "sum_tensor_norms":
        return norms.sum()
    raise ValueError(f"unknown proximal form {form!r}")
