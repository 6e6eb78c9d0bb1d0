"""SGD and Adam on stacked parameters, (clients, ...), where only some clients take a step.

PyTorch's optimisers would also move the clients that have no batch left (momentum, Adam's counters), hence these. They
follow torch.optim's formulas; a test compares them with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

Tensors = list[Tensor] | tuple[Tensor, ...]
Rows = int | Tensor  # the first so many clients, or these


def stacked_optimizer(optimizers: Sequence[Optimizer], params: Tensors) -> Stacked:
    """The stacked form of torch optimisers of one kind in `STACKED`: of each client its own, which differ in `lr`."""
    kind = STACKED[type(optimizers[0])]
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    lr = rates[0] if len(set(rates)) == 1 else params[0].new_tensor(rates, dtype=torch.float64)
    return kind(params, lr, **dict(kind.settings(optimizers[0].param_groups[0])))


class Stacked:
    """Stacks that belong together, a row for each client: the parameters, and what the optimiser remembers of them."""

    names: ClassVar[tuple[str, ...]]  # settings that this form knows, and that clients share

    def __init__(self, lr: float | Tensor, weight_decay: float, params: Tensors, *remembered: Tensors) -> None:
        self.weight_decay = weight_decay
        self.lr = lr  # one rate, or one for each client
        self.stacks = [params, *remembered]

    @classmethod
    def settings(cls, group: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """What a torch optimiser's group of parameters sets, as far as this form knows it."""
        return tuple((name, group[name]) for name in cls.names)

    @torch.no_grad()
    def step(self, gradients: Tensors, rows: Rows) -> None:
        """Move the parameters of the clients in `rows` in place; `gradients` are theirs."""
        stacks = [chosen(stack, rows) for stack in self.stacks]
        if self.weight_decay:
            gradients = torch._foreach_add(gradients, stacks[0], alpha=self.weight_decay)
        self.update(gradients, _of(self.lr, rows), *stacks)
        if isinstance(rows, Tensor):
            for stack, moved in zip(self.stacks, stacks, strict=True):
                for value, part in zip(stack, moved, strict=True):
                    value[rows] = part

    def update(self, gradients: Tensors, lr: float | Tensor, params: Tensors, *remembered: Tensors) -> None:
        raise NotImplementedError


class StackedSGD(Stacked):
    """torch.optim.SGD with momentum and weight decay."""

    names = ("momentum", "weight_decay")

    def __init__(self, params: Tensors, lr: float | Tensor, *, momentum: float, weight_decay: float) -> None:
        self.momentum = momentum
        super().__init__(lr, weight_decay, params, *([_zeros(params)] if momentum else []))

    def update(self, gradients: Tensors, lr: float | Tensor, params: Tensors, *remembered: Tensors) -> None:
        for buffers in remembered:  # after the first step this is the gradient itself, as 0 * momentum + gradient is
            torch._foreach_mul_(buffers, self.momentum)
            torch._foreach_add_(buffers, gradients)
            gradients = buffers
        if isinstance(lr, Tensor):
            gradients = [gradient * _beside(lr, gradient) for gradient in gradients]
            lr = 1.0
        torch._foreach_add_(params, gradients, alpha=-lr)


class StackedAdam(Stacked):
    """torch.optim.Adam (L2 penalty in the gradient), with a step counter per client."""

    names = ("betas", "weight_decay", "eps")

    def __init__(
        self, params: Tensors, lr: float | Tensor, *, betas: tuple[float, float], weight_decay: float, eps: float
    ) -> None:
        self.betas, self.eps = betas, eps
        steps = [params[0].new_zeros(len(params[0]), dtype=torch.float64)]  # torch.optim corrects in float64, too
        super().__init__(lr, weight_decay, params, steps, _zeros(params), _zeros(params))

    def update(self, gradients: Tensors, lr: float | Tensor, params: Tensors, *remembered: Tensors) -> None:
        (steps,), means, squares = remembered
        first, second = self.betas
        steps += 1
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        sizes, roots = lr / (1 - first**steps), (1 - second**steps).sqrt()
        for value, mean, square in zip(params, means, squares, strict=True):
            value.sub_(_beside(sizes, value) * mean / (square.sqrt() / _beside(roots, value) + self.eps))


def chosen(stacks: Tensors, rows: Rows) -> list[Tensor]:
    """The first so many rows as they lie, or copies of these rows."""
    return [value[:rows] if isinstance(rows, int) else value[rows] for value in stacks]


def _of(lr: float | Tensor, rows: Rows) -> float | Tensor:
    return chosen([lr], rows)[0] if isinstance(lr, Tensor) else lr


def _beside(numbers: Tensor, value: Tensor) -> Tensor:
    """One number for each client, in the form of that client's `value`."""
    return numbers.to(value.dtype).view(-1, *[1] * (value.ndim - 1))


def _zeros(like: Tensors) -> Tensors:
    return [torch.zeros_like(value) for value in like]


STACKED: dict[type[Optimizer], type[StackedSGD] | type[StackedAdam]] = {
    torch.optim.SGD: StackedSGD,
    torch.optim.Adam: StackedAdam,
}
