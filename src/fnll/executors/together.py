"""Local training of several clients at once: stacked parameters, and `torch.func.vmap` over the loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from fnll.executors.lanes import Lane, attributes, equal
from fnll.executors.stacked import stacked_optimizer
from fnll.fit import batches
from fnll.local import Classifier, Trained
from fnll.types import Batch
from fnll.weights import snapshot


class NotTogetherError(Exception):
    """Why clients must train alone, found out in their first step."""


_TENSOR = object()  # stands for a tensor where only the rest of a batch is told


class Row(NamedTuple):
    """A batch of one lane, taken apart: tensors to stack, and the form that rows of one step share."""

    tensors: list[Tensor]
    form: Hashable
    tree: TreeSpec
    plain: tuple[Any, ...]  # leaves that are no tensors, with _TENSOR in the places of those


def train_together(lanes: Sequence[Lane]) -> list[Trained]:
    """Train the modules of `lanes` in place; lanes whose next batch has the same form step together."""
    device = lanes[0].request.client.device
    columns = zip(*(lane.moved_tensors() for lane in lanes), strict=True)
    params = [torch.stack([value.detach() for value in column]) for column in columns]
    optimizer = stacked_optimizer(lanes[0].optimizer, params)
    constants = Constants(lanes)
    streams = [_rows(lane) for lane in lanes]
    with _losses(lanes[0], constants) as losses:
        before: tuple[Any, ...] | None = _marks(lanes[0].module, constants)
        while rows := {k: row for k, stream in enumerate(streams) if (row := next(stream, None)) is not None}:
            by_form: dict[Hashable, list[int]] = defaultdict(list)
            for k, row in rows.items():
                by_form[row.form].append(k)
            for members in by_form.values():
                chosen = None if len(members) == len(lanes) else torch.tensor(members, device=device)
                stacked = [torch.stack(parts) for parts in zip(*(rows[k].tensors for k in members), strict=True)]
                own = [value.detach().requires_grad_() for value in _chosen(params, chosen)]
                # A client's loss depends on its own row alone: the gradient of the sum is everyone's own gradient.
                total = losses(rows[members[0]], own, _chosen(constants.stacks, chosen), stacked).sum()
                gradients = torch.autograd.grad(total, own, allow_unused=True)
                if any(gradient is None for gradient in gradients):
                    raise NotTogetherError("its loss leaves parameters unused")
                optimizer.step(gradients, chosen)
            if before is not None and _marks(lanes[0].module, constants) != before:
                raise NotTogetherError(f"{type(lanes[0].module).__name__} changes itself while it trains")
            before = None  # what the first step leaves alone, the others do
    return [_written(lane, k, params) for k, lane in enumerate(lanes)]


def _written(lane: Lane, k: int, params: Sequence[Tensor]) -> Trained:
    with torch.no_grad():
        for own, stack in zip(lane.moved_tensors(), params, strict=True):
            own.copy_(stack[k])
    return Trained(snapshot(lane.module.net), {})


class Constants:
    """What the losses of lanes read and do not train: as they are where all lanes agree, else stacked."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        fixed = list(zip(*(lane.fixed_tensors() for lane in lanes), strict=True))
        leaves = list(zip(*(lane.leaves for lane in lanes), strict=True))
        self.fixed = [i for i, column in enumerate(fixed) if not equal(list(column))]
        self.leaves = [
            i for i, column in enumerate(leaves) if isinstance(column[0], Tensor) and not equal(list(column))
        ]
        self.names = [f"module.{lanes[0].fixed[i]}" for i in self.fixed]
        self.stacks = [
            torch.stack(list(column)) for column in (*(fixed[i] for i in self.fixed), *(leaves[i] for i in self.leaves))
        ]
        self.lane = lanes[0]

    def parameters(self, own: Sequence[Tensor]) -> dict[str, Tensor]:
        """Those of networks, by name."""
        return dict(zip(self.names, own[: len(self.names)], strict=True))

    def attributes(self, own: Sequence[Tensor]) -> dict[str, Any]:
        """All attributes of the module, with one lane's leaves in place."""
        leaves = list(self.lane.leaves)
        for i, value in zip(self.leaves, own[len(self.names) :], strict=True):
            leaves[i] = value
        return tree_unflatten(leaves, self.lane.tree) if self.leaves else {}


class _Loss(nn.Module):
    """A module's loss as a forward pass, so that its parameters can be swapped from outside."""

    def __init__(self, module: Classifier) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Batch) -> Tensor:
        return self.module.loss(batch)


@contextmanager
def _losses(lane: Lane, constants: Constants) -> Iterator[Callable[..., Tensor]]:
    """The losses of stacked lanes, (lanes,), as a function of a batch's form, parameters, constants and batches.

    Only the forward pass is vectorised by `vmap`; going backward through what it did is plain autograd, which spares
    the bookkeeping of `torch.func.grad`. In the end the module is as it was.
    """
    module = lane.module
    wrapped = _Loss(module)
    names = [f"module.{name}" for name in lane.moved]
    hooks = [
        part.register_forward_pre_hook(_channels_last) for part in module.modules() if isinstance(part, nn.MaxPool2d)
    ]
    before = attributes(module)

    def losses(row: Row, own: list[Tensor], fixed: list[Tensor], tensors: list[Tensor]) -> Tensor:
        def loss(own: list[Tensor], fixed: list[Tensor], tensors: list[Tensor]) -> Tensor:
            params = dict(zip(names, own, strict=True)) | constants.parameters(fixed)
            for name, value in constants.attributes(fixed).items():
                setattr(module, name, value)
            return functional_call(wrapped, params, (_batch(row, tensors),))

        try:
            return vmap(loss, in_dims=(0, 0 if fixed else None, 0))(own, fixed, tensors)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise NotTogetherError(f"its loss cannot be vectorised ({str(error).splitlines()[0]})") from error
        finally:
            for name, value in before.items() if constants.leaves else ():
                setattr(module, name, value)

    try:
        yield losses
    finally:
        for hook in hooks:
            hook.remove()


def _rows(lane: Lane) -> Iterator[Row]:
    """The batches of a lane with everything random in them, drawn as the lane alone would draw it."""
    for batch in batches(lane.request):
        drawn = lane.module.draw(batch, lane.request.client)
        leaves, tree = tree_flatten((drawn.views, drawn.y, drawn.index, dict(drawn.extras)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        counts = [torch.tensor(drawn.epoch), torch.tensor(drawn.step)]  # tensors: they may differ between lanes
        plain = tuple(_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        form = tuple((leaf.shape, leaf.dtype) for leaf in tensors), tree, plain
        yield Row([*counts, *tensors], form, tree, plain)


def _batch(row: Row, tensors: Sequence[Tensor]) -> Batch:
    epoch, step, *others = tensors
    rest = iter(others)
    leaves = [next(rest) if value is _TENSOR else value for value in row.plain]
    views, y, index, extras = tree_unflatten(leaves, row.tree)
    return Batch(views, y, index, epoch, step, extras)  # type: ignore[arg-type]


def _marks(module: Classifier, constants: Constants) -> tuple[Any, ...]:
    """Whatever changes if a loss writes to its module: the form of its attributes, tensors' versions, other values."""
    leaves, tree = tree_flatten(attributes(module))
    tensors = [*module.parameters(), *module.buffers(), *constants.stacks]
    return (
        tree,
        [id(leaf) for leaf in leaves],
        [leaf._version for leaf in [*leaves, *tensors] if isinstance(leaf, Tensor)],
    )


def _channels_last(_: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor | None:
    """Vectorised convolutions leave channels first, where max-pooling on the CPU takes five times as long."""
    return inputs[0].movedim(-3, -1).contiguous().movedim(-1, -3) if inputs else None


def _chosen(stacks: Sequence[Tensor], rows: Tensor | None) -> list[Tensor]:
    return list(stacks) if rows is None else [value[rows] for value in stacks]
