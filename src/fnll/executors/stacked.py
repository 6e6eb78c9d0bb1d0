"""SGD and Adam on stacked parameters, (clients, ...), where only some clients take a step.

PyTorch's optimisers would also move the clients that have no batch left (momentum, Adam's counters), hence these. They
follow torch.optim's formulas; a test compares them with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

Tensors = list[Tensor] | tuple[Tensor, ...]


def stacked_optimizer(optimizer: Optimizer, params: Tensors) -> Stacked:
    """The stacked form of a torch optimiser, one of those in `STACKED`, with its settings."""
    kind = STACKED[type(optimizer)]
    return kind(params, **dict(kind.settings(optimizer.param_groups[0])))


class Stacked:
    """Stacks that belong together, a row for each client: the parameters, and what the optimiser remembers of them."""

    names: ClassVar[tuple[str, ...]]  # settings that this form knows

    def __init__(self, lr: float, weight_decay: float, params: Tensors, *remembered: Tensors) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        self.stacks = [params, *remembered]

    @classmethod
    def settings(cls, group: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """What a torch optimiser's group of parameters sets, as far as this form knows it."""
        return tuple((name, group[name]) for name in cls.names)

    @torch.no_grad()
    def step(self, gradients: Tensors, rows: Tensor | None) -> None:
        """Move the parameters of the clients in `rows` (None: of all) in place."""
        stacks = self.stacks if rows is None else [[value[rows] for value in stack] for stack in self.stacks]
        if self.weight_decay:
            gradients = torch._foreach_add(gradients, stacks[0], alpha=self.weight_decay)
        self.update(gradients, *stacks)
        if rows is not None:
            for stack, moved in zip(self.stacks, stacks, strict=True):
                for value, part in zip(stack, moved, strict=True):
                    value[rows] = part

    def update(self, gradients: Tensors, params: Tensors, *remembered: Tensors) -> None:
        raise NotImplementedError


class StackedSGD(Stacked):
    """torch.optim.SGD with momentum and weight decay."""

    names = ("lr", "momentum", "weight_decay")

    def __init__(self, params: Tensors, lr: float, *, momentum: float, weight_decay: float) -> None:
        self.momentum = momentum
        super().__init__(lr, weight_decay, params, *([_zeros(params)] if momentum else []))

    def update(self, gradients: Tensors, params: Tensors, *remembered: Tensors) -> None:
        for buffers in remembered:  # after the first step this is the gradient itself, as 0 * momentum + gradient is
            torch._foreach_mul_(buffers, self.momentum)
            torch._foreach_add_(buffers, gradients)
            gradients = buffers
        torch._foreach_add_(params, gradients, alpha=-self.lr)


class StackedAdam(Stacked):
    """torch.optim.Adam (L2 penalty in the gradient), with a step counter per client."""

    names = ("lr", "betas", "weight_decay", "eps")

    def __init__(
        self, params: Tensors, lr: float, *, betas: tuple[float, float], weight_decay: float, eps: float
    ) -> None:
        self.betas, self.eps = betas, eps
        steps = [params[0].new_zeros(len(params[0]), dtype=torch.float64)]  # torch.optim corrects in float64, too
        super().__init__(lr, weight_decay, params, steps, _zeros(params), _zeros(params))

    def update(self, gradients: Tensors, params: Tensors, *remembered: Tensors) -> None:
        (steps,), means, squares = remembered
        first, second = self.betas
        steps += 1
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        sizes, roots = (f.to(params[0].dtype) for f in (self.lr / (1 - first**steps), (1 - second**steps).sqrt()))
        for value, mean, square in zip(params, means, squares, strict=True):
            shape = (-1, *[1] * (value.ndim - 1))
            value.sub_(sizes.view(shape) * mean / (square.sqrt() / roots.view(shape) + self.eps))


def _zeros(like: Tensors) -> Tensors:
    return [torch.zeros_like(value) for value in like]


STACKED: dict[type[Optimizer], type[StackedSGD] | type[StackedAdam]] = {
    torch.optim.SGD: StackedSGD,
    torch.optim.Adam: StackedAdam,
}
