"""SGD and Adam on stacked parameters, (clients, ...), where only some clients take a step.

PyTorch's optimisers would also move the clients that have no batch left (momentum, Adam's counters), hence these. They
follow torch.optim's formulas; a test compares them with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class StackedOptimizer(Protocol):
    """Moves the stacked parameters in place."""

    def step(self, gradients: Mapping[str, Tensor], rows: Tensor | None) -> None: ...  # rows: who steps; None: all


def vectorisable_optimizer(factory: Callable[..., Any]) -> bool:
    """Whether `factory` (a partial of a torch optimiser) has a stacked form."""
    return getattr(factory, "func", None) in (torch.optim.SGD, torch.optim.Adam)


def stacked_optimizer(factory: Any, params: dict[str, Tensor], lr: float) -> StackedOptimizer:
    """The stacked form of a partial of `torch.optim.SGD` or `Adam`."""
    settings = {name: value for name, value in factory.keywords.items() if name != "fused"}
    return (StackedSGD if factory.func is torch.optim.SGD else StackedAdam)(params, lr, **settings)


class StackedSGD:
    """torch.optim.SGD with momentum and weight decay."""

    def __init__(self, params: dict[str, Tensor], lr: float, *, momentum: float, weight_decay: float) -> None:
        self.params, self.lr, self.momentum, self.weight_decay = params, lr, momentum, weight_decay
        self.buffers = {name: torch.zeros_like(value) for name, value in params.items()} if momentum else {}

    def step(self, gradients: Mapping[str, Tensor], rows: Tensor | None) -> None:
        for name, value in self.params.items():
            change = gradients[name]
            if self.weight_decay:
                change = change + self.weight_decay * _rows(value, rows)
            if self.momentum:  # the first step's buffer is the gradient itself, as 0 * momentum + gradient is
                change = _put(self.buffers[name], rows, _rows(self.buffers[name], rows) * self.momentum + change)
            _put(value, rows, _rows(value, rows).sub(change, alpha=self.lr))


class StackedAdam:
    """torch.optim.Adam (L2 penalty in the gradient), with a step counter per client."""

    def __init__(
        self,
        params: dict[str, Tensor],
        lr: float,
        *,
        betas: tuple[float, float],
        weight_decay: float,
        eps: float = 1e-8,
    ) -> None:
        self.params, self.lr, self.betas, self.weight_decay, self.eps = params, lr, betas, weight_decay, eps
        first = next(iter(params.values()))
        self.steps = torch.zeros(len(first), device=first.device)
        self.mean = {name: torch.zeros_like(value) for name, value in params.items()}
        self.square = {name: torch.zeros_like(value) for name, value in params.items()}

    def step(self, gradients: Mapping[str, Tensor], rows: Tensor | None) -> None:
        steps = _put(self.steps, rows, _rows(self.steps, rows) + 1)
        first, second = self.betas
        for name, value in self.params.items():
            gradient = gradients[name]
            if self.weight_decay:
                gradient = gradient + self.weight_decay * _rows(value, rows)
            mean = _put(self.mean[name], rows, _rows(self.mean[name], rows).lerp(gradient, 1 - first))
            decayed = _rows(self.square[name], rows) * second
            square = _put(self.square[name], rows, decayed.addcmul_(gradient, gradient, value=1 - second))
            shape = (-1, *[1] * (value.ndim - 1))
            size = (self.lr / (1 - first**steps)).view(shape)
            root = (1 - second**steps).sqrt().view(shape)
            _put(value, rows, _rows(value, rows) - size * mean / (square.sqrt() / root + self.eps))


def _rows(stack: Tensor, rows: Tensor | None) -> Tensor:
    return stack if rows is None else stack[rows]


def _put(stack: Tensor, rows: Tensor | None, new: Tensor) -> Tensor:
    """Write `new` into the rows of `stack`, and return it."""
    if rows is None:
        stack.copy_(new)
    else:
        stack[rows] = new
    return new
