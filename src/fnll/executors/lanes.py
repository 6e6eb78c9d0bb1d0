"""Which requests for training can be met together: what one lane of a vectorised step needs to know of its request.

A request is taken apart into what the optimiser moves, tensors and numbers that may differ from lane to lane, and
everything else, which must be equal: requests with equal `key`s share a step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache, partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import TreeSpec, tree_flatten

from fnll.executors.stacked import STACKED
from fnll.local import FULL, Classifier, Fit
from fnll.training import configured, place

HOOKS = ("training_step", "on_train_epoch_start", "on_train_epoch_end")  # what only one client at a time can have


@dataclass(frozen=True)
class Lane:
    """One request, ready to be stacked with others of the same `key`."""

    request: Fit
    key: Hashable
    numbers: tuple[float, ...]  # the round, and those of its attributes; some losses cannot do with different ones
    optimizer: Optimizer
    moved: tuple[str, ...]  # names of the module's parameters that the optimiser moves
    fixed: tuple[str, ...]  # names of its other parameters and buffers, helper networks included
    tree: TreeSpec  # of the attributes of the module
    leaves: tuple[Any, ...]  # of these; tensors and numbers may differ between lanes

    @property
    def module(self) -> Classifier:
        return self.request.module

    @property
    def steps(self) -> int:
        """How many batches it trains on."""
        spec = self.module.spec
        return spec.epochs * math.ceil(len(self.request.client) / spec.batch_size)

    def moved_tensors(self) -> list[Tensor]:
        """What is trained."""
        known = dict(self.module.named_parameters())
        return [known[name] for name in self.moved]

    def fixed_tensors(self) -> list[Tensor]:
        """What the loss reads and training leaves alone."""
        known = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return [known[name] for name in self.fixed]


def lane_of(request: Fit) -> Lane | str:
    """`request` as a lane, or the reason why it has to be met alone."""
    module = request.module
    if reason := _why_not(module):
        return reason
    place(module, request.client.device)
    module.train()
    (optimizer, *more), rates = configured(module)
    if more or rates or len(optimizer.param_groups) > 1 or type(optimizer) not in STACKED:
        return "its optimiser is not a plain SGD or Adam"
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    moving = [names.get(id(p)) for p in optimizer.param_groups[0]["params"] if p.requires_grad]
    if None in moving:
        return "its optimiser moves something that is no parameter of the module"
    moved = tuple(name for name in moving if name is not None)
    shapes = tuple((name, tuple(t.shape), t.dtype) for name, t in _tensors(module))
    fixed = tuple(name for name, _, _ in shapes if name not in set(moved))
    leaves, tree = tree_flatten(attributes(module))
    key = (
        tuple(type(part) for part in module.modules()),
        tuple(part.training for part in module.modules()),
        shapes,
        moved,
        tree,
        tuple(_equal_part(leaf) for leaf in leaves),
        type(optimizer),
        STACKED[type(optimizer)].settings(optimizer.param_groups[0]),
        (module.spec.epochs, module.spec.batch_size, request.views, request.client.device),
    )
    numbers = (module.t, *(leaf for leaf in leaves if is_number(leaf)))
    return Lane(request, key, numbers, optimizer, moved, fixed, tree, tuple(leaves))


def attributes(module: Classifier) -> dict[str, Any]:
    """What an author put on the module besides networks: the facts of its objective, and a subclass's own."""
    return {name: value for name, value in vars(module).items() if name not in _machinery()}


@lru_cache(maxsize=1)
def _machinery() -> frozenset[str]:
    """Attributes that every LightningModule has."""
    plain: Any = Classifier(nn.Identity(), spec=None)  # type: ignore[arg-type]
    later = {"fabric", "_fabric_optimizers"}
    return frozenset(vars(plain).keys() | later) - {"facts", "objective"}


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def is_number(leaf: Any) -> bool:
    """Whether lanes may have different ones: the loss then sees a tensor."""
    return type(leaf) in (bool, int, float)


def _equal_part(leaf: Any) -> Hashable:
    """What must be equal between lanes: of a tensor its form, of a number that it is one, of anything else itself."""
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype
    return "a number" if is_number(leaf) else itself(leaf)


def itself(value: Any) -> Hashable:
    """Equal for objects that are built alike, such as the methods of two runs; by identity where one cannot tell."""
    if isinstance(value, MethodType):
        return value.__func__, itself(value.__self__)
    if isinstance(value, partial):
        return partial, itself(value.func), itself(value.args), itself(value.keywords)
    if isinstance(value, Mapping):
        return type(value), tuple((name, itself(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(itself(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return type(value), tuple(itself(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Tensor):
        return "object", id(value)
    try:
        hash(value)
    except TypeError:
        return "object", id(value)
    return type(value), value


def _why_not(module: Classifier) -> str | None:
    kind, spec = type(module), module.spec
    if not module.automatic_optimization:
        return f"{kind.__name__} steps in its own way"
    for hook in HOOKS:
        if getattr(kind, hook) is not getattr(Classifier, hook):
            return f"{kind.__name__} has a {hook} of its own"
    if spec.precision != FULL or spec.clip_norm is not None or spec.keep_optimizer:
        return "mixed precision, clipped gradients and kept optimisers are not vectorised"
    return _why_not_network(module)


def _why_not_network(module: nn.Module) -> str | None:
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.training:
            return "dropout draws for one client at a time"
        if getattr(part, "running_mean", None) is not None and part.training:
            return "BatchNorm's running statistics cannot be vectorised"
    every = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    return "parts of it share parameters" if len(every) > len(list(module.parameters())) else None


def equal(values: list[Tensor]) -> bool:
    """Whether all lanes have the same tensor, so that it need not be stacked."""
    first, *others = values
    return all(other is first or torch.equal(other, first) for other in others)
