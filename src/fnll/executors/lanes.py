"""Which requests for training can be met together: what one lane of a vectorised step needs to know of its request.

A request is taken apart into what the optimiser moves, tensors and numbers that may differ from lane to lane, and
everything else, which must be equal: requests with equal `key`s share a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache, partial
from types import MethodType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import TreeSpec, tree_flatten

from fnll.executors.stacked import STACKED
from fnll.local import FULL, Classifier, Fit
from fnll.training import configured, place

PLAIN = {bool, int, float, str, type(None)}
WAYS = ("lr", "foreach", "fused", "capturable", "differentiable")  # settings of lanes, or of how torch computes
DEFAULTS: dict[type[Optimizer], dict[str, Any]] = {
    kind: kind([nn.Parameter(torch.zeros(1))], lr=1.0).defaults for kind in (torch.optim.SGD, torch.optim.Adam)
}
IDENTITY: Any = object.__hash__  # of objects that equal themselves alone
MACHINERY = frozenset(vars(nn.Module()))  # attributes that every module has
HOOKS = ("training_step", "on_train_epoch_start", "on_train_epoch_end")  # what only one client at a time can have


@dataclass(frozen=True)
class Lane:
    """One request, ready to be stacked with others of the same `key`."""

    request: Fit
    key: Hashable
    numbers: tuple[float, ...]  # the round, and those of its attributes; some losses cannot do with different ones
    optimizer: Optimizer
    moved: Mapping[str, Tensor]  # the module's parameters that the optimiser moves, by name
    fixed: Mapping[str, Tensor]  # its other parameters and buffers, helper networks included
    tree: TreeSpec  # of the attributes of the module
    leaves: tuple[Any, ...]  # of these; tensors and numbers may differ between lanes
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # entered for what is done for this lane alone

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
        return list(self.moved.values())

    def fixed_tensors(self) -> list[Tensor]:
        """What the loss reads and training leaves alone."""
        return list(self.fixed.values())


def lane_of(request: Fit, owners: dict[int, Hashable] | None = None) -> Lane | str:
    """`request` as a lane, or the reason why it has to be met alone.

    `owners` is what was found of the methods that own objectives, by `id`: the lanes of a run have one in common.
    """
    owners = {} if owners is None else owners
    module, device = request.module, request.client.device
    named = walked(module)
    parts = [part for _, part in named]
    if reason := _why_not(module, parts):
        return reason
    tensors = tensors_of(named)
    if device.type != "cpu" or any(tensor.device != device for tensor in tensors.values()):
        place(module, device)  # which takes as long as all of the rest
        tensors = tensors_of(named)
    module.train()
    (optimizer, *more), rates = configured(module)
    if more or rates or not _plain(optimizer):
        return "its optimiser is not a plain SGD or Adam"
    names = {id(tensor): name for name, tensor in tensors.items()}
    moving = [(names.get(id(p)), p) for p in optimizer.param_groups[0]["params"] if p.requires_grad]
    moved = {name: parameter for name, parameter in moving if name is not None}
    if len(moved) < len(moving):
        return "its optimiser moves something that is no parameter of the module"
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in moved.values()):
        return "its parameters have hooks"
    fixed = {name: tensor for name, tensor in tensors.items() if name not in moved}
    leaves, tree = tree_flatten(attributes(module))
    key = (
        type(module),
        built(parts[1:]),
        tuple(part.training for part in parts),
        tuple((name, t.shape, t.dtype) for name, t in tensors.items()),
        tuple(moved),
        tree,
        tuple(_equal_part(leaf, owners) for leaf in leaves),
        type(optimizer),
        STACKED[type(optimizer)].settings(optimizer.param_groups[0]),
        (module.spec.epochs, module.spec.batch_size, request.views, device),
    )
    numbers = (module.t, *(leaf for leaf in leaves if is_number(leaf)))
    return Lane(request, key, numbers, optimizer, moved, fixed, tree, tuple(leaves))


def _plain(optimizer: Optimizer) -> bool:
    """Whether the stacked form does all that this optimiser does: no other settings, nothing remembered, no hooks."""
    if type(optimizer) not in STACKED or len(optimizer.param_groups) > 1:
        return False
    (group,), known = optimizer.param_groups, {*STACKED[type(optimizer)].names, *WAYS}
    odd = any(group[name] != value for name, value in DEFAULTS[type(optimizer)].items() if name not in known)
    return not (odd or optimizer.state or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def attributes(module: Classifier) -> dict[str, Any]:
    """What an author put on the module besides networks: the facts of its objective, and a subclass's own."""
    return {name: value for name, value in vars(module).items() if name not in _machinery()}


@lru_cache(maxsize=1)
def _machinery() -> frozenset[str]:
    """Attributes that every LightningModule has."""
    plain: Any = Classifier(nn.Identity(), spec=None)  # type: ignore[arg-type]
    later = {"fabric", "_fabric_optimizers"}
    return frozenset(vars(plain).keys() | later) - {"facts", "objective"}


def walked(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """What `named_modules` gives, in a quarter of its time: it is asked for every client in every round."""
    found: dict[nn.Module, str] = {}
    waiting = [("", module)]
    while waiting:
        path, part = waiting.pop()
        if part not in found:
            found[part] = path
            children = part._modules.items()
            waiting += [(f"{path}.{n}" if path else n, child) for n, child in reversed(children) if child is not None]
    return [(path, part) for part, path in found.items()]


def tensors_of(named: Sequence[tuple[str, nn.Module]]) -> dict[str, Tensor]:
    """Parameters and buffers of modules by name."""
    return {
        f"{path}.{name}" if path else name: tensor
        for path, part in named
        for own in (part._parameters, part._buffers)
        for name, tensor in own.items()
        if tensor is not None
    }


def built(parts: Sequence[nn.Module]) -> Hashable:
    """What networks are but for their tensors: equal if they compute alike."""
    return tuple(
        (
            type(part),
            tuple(
                (name, value if type(value) in PLAIN else itself(value))
                for name, value in vars(part).items()
                if name not in MACHINERY
            ),
        )
        for part in parts
    )


def hooked(parts: Sequence[nn.Module]) -> bool:
    """Whether somebody listens to what passes through a network: to one lane, or to none, if it is stacked."""
    return any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for part in parts
    )


def is_number(leaf: Any) -> bool:
    """Whether lanes may have different ones: the loss then sees a tensor."""
    return type(leaf) in (bool, int, float)


def _equal_part(leaf: Any, owners: dict[int, Hashable]) -> Hashable:
    """What must be equal between lanes: of a tensor its form, of a number that it is one, of anything else itself."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype
    if isinstance(leaf, MethodType):
        owner = id(leaf.__self__)
        if owner not in owners:
            owners[owner] = itself(leaf.__self__)
        return leaf.__func__, owners[owner]
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
    if _by_parts(value):
        return type(value), tuple(itself(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Tensor) or (value is not None and type(value).__hash__ is IDENTITY):
        return Same(value)
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return type(value), value


def _by_parts(value: Any) -> bool:
    """Whether this is a frozen dataclass, and not one that says itself what it equals."""
    if not is_dataclass(value) or isinstance(value, type):
        return False
    how = value.__dataclass_params__  # type: ignore[attr-defined]
    return bool(how.frozen and how.eq)


class Same:
    """Equal for one and the same object, as long as there is one: a key does not keep alive what it names."""

    __slots__ = ("_named", "_of")

    def __init__(self, value: Any) -> None:
        self._named = id(value)
        try:
            self._of: Callable[[], Any] = ref(value)
        except TypeError:  # few kinds of objects: nothing but a reference can tell that they are still there
            self._of = lambda: value

    def __hash__(self) -> int:
        return hash(self._named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._named == other._named and self._of() is other._of() is not None


def _why_not(module: Classifier, parts: Sequence[nn.Module]) -> str | None:
    kind, spec = type(module), module.spec
    if not module.automatic_optimization:
        return f"{kind.__name__} steps in its own way"
    for hook in HOOKS:
        if getattr(kind, hook) is not getattr(Classifier, hook):
            return f"{kind.__name__} has a {hook} of its own"
    if spec.precision != FULL or spec.clip_norm is not None or spec.keep_optimizer:
        return "mixed precision, clipped gradients and kept optimisers are not vectorised"
    return _why_not_network(parts)


def _why_not_network(parts: Sequence[nn.Module]) -> str | None:
    if hooked(parts):
        return "parts of it have hooks"
    seen: set[int] = set()
    for part in parts:
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.training:
            return "dropout draws for one client at a time"
        if isinstance(part, nn.RNNBase):
            return "recurrent layers cannot be vectorised"
        if part.training and "running_mean" in part._buffers and part._buffers["running_mean"] is not None:
            return "BatchNorm's running statistics cannot be vectorised"
        own = [id(parameter) for parameter in part._parameters.values() if parameter is not None]
        if len({*own} - seen) < len(own):
            return "parts of it share parameters"
        seen.update(own)
    return None


def equal(values: list[Tensor]) -> bool:
    """Whether all lanes have the same tensor, so that it need not be stacked."""
    first, *others = values
    return all(other is first or torch.equal(other, first) for other in others)
