"""Chains of plain layers on many lanes at once, without a `vmap` of every operation.

The loss of a module is any function, so it is vectorised by `torch.func.vmap`, whose bookkeeping around every operation
costs as much as a small network's arithmetic. Networks are mostly chains of a few known layers: those are taken out of
`vmap` in one piece, computed with an explicit dimension of lanes, and handed back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fnll.executors.convolution import convolve

Own = tuple[Tensor | None, Tensor | None]  # a layer's weight and bias
Dims = tuple[bool, bool]  # whether these have a dimension of lanes


@contextmanager
def stacked_layers(module: nn.Module) -> Iterator[None]:
    """Let the chains of known layers inside `module` be computed here; only `vmap` may call it meanwhile."""
    chains = list(_chains(module))
    for chain in chains:
        chain.forward = partial(_forward, chain)
    try:
        yield
    finally:
        for chain in chains:
            del chain.forward


def _chains(module: nn.Module) -> Iterator[nn.Module]:
    """The largest parts that consist of known layers alone."""
    if _known(module):
        yield module
    else:
        for child in module.children():
            yield from _chains(child)


def _known(module: nn.Module) -> bool:
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    if type(module) is nn.Sequential:
        return len(module) > 0 and all(_known(part) for part in module)
    return type(module) in LAYERS and getattr(module, "padding_mode", "zeros") == "zeros"


def _flat(module: nn.Module) -> list[nn.Module]:
    return [layer for part in module for layer in _flat(part)] if isinstance(module, nn.Sequential) else [module]


def _forward(chain: nn.Module, x: Tensor) -> Tensor:
    layers = _flat(chain)
    own = [value for layer in layers for value in (getattr(layer, "weight", None), getattr(layer, "bias", None))]
    return _Chain.apply(layers, x, *own)


class _Chain(torch.autograd.Function):
    """The way out of `vmap` and back: its rule sees plain tensors, and autograd follows what it does with them."""

    @staticmethod
    def forward(layers: Sequence[nn.Module], x: Tensor, *own: Tensor | None) -> Tensor:
        raise RuntimeError("vmap: stacked layers were called outside of a vectorised step")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing is kept: only what `vmap` returns is ever differentiated."""

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], layers: Sequence[nn.Module], x: Tensor, *own: Tensor | None) -> Any:
        _, x_dim, *own_dims = dims
        x = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
        moved = [v if v is None or dim is None else v.movedim(dim, 0) for v, dim in zip(own, own_dims, strict=True)]
        for i, layer in enumerate(layers):
            weight, bias = moved[2 * i : 2 * i + 2]
            if weight is not None and (own_dims[2 * i] is None) != (bias is None or own_dims[2 * i + 1] is None):
                weight, bias = _both_stacked(info.batch_size, (weight, bias), own_dims[2 * i : 2 * i + 2])
                stacked = True
            else:
                stacked = own_dims[2 * i] is not None
            x = LAYERS[type(layer)](layer, x, weight, bias, stacked)
        return x, 0


def _both_stacked(lanes: int, own: Own, dims: Sequence[int | None]) -> Own:
    weight, bias = (
        v.expand(lanes, *v.shape) if v is not None and d is None else v for v, d in zip(own, dims, strict=True)
    )
    return weight, bias


def _linear(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None, stacked: bool) -> Tensor:
    if not stacked:
        return F.linear(x, weight, bias)
    rows = x.flatten(1, -2)
    result = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
    return result if x.ndim == 3 else result.unflatten(1, x.shape[1:-1])


def _convolution(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stacked: bool) -> Tensor:
    if not stacked:
        settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return F.conv2d(x.flatten(0, 1), weight, bias, *settings).unflatten(0, x.shape[:2])
    return convolve(layer, x, weight, bias)


def _each(layer: nn.Module, x: Tensor, weight: None, bias: None, stacked: bool) -> Tensor:
    """A layer without parameters treats every sample of every lane alike."""
    # Not `layer(...)`: where it stands by itself, that is this very step.
    result: Tensor = type(layer).forward(layer, x.flatten(0, 1))
    return result.unflatten(0, x.shape[:2])


def _max_pool(layer: nn.Module, x: Tensor, weight: None, bias: None, stacked: bool) -> Tensor:
    """With channels last, since on the CPU the other way takes five times as long."""
    return _each(layer, x.movedim(-3, -1).contiguous().movedim(-1, -3), weight, bias, stacked)


LAYERS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.MaxPool2d: _max_pool,
    **dict.fromkeys(
        (nn.ReLU, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity, nn.Tanh, nn.Sigmoid, nn.LeakyReLU,
         nn.ELU, nn.GELU),
        _each,
    ),
}  # fmt: skip
