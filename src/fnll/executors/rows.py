"""The batches of lanes, taken apart so that those of one step can be stacked: tensors, numbers, and everything else.

A short batch is padded to the length of the longest of its step. Padding carries the label `PADDING`, which PyTorch's
own losses leave out of their means; its images are real ones of another lane, so that nothing becomes infinite.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from fnll.executors.lanes import Lane
from fnll.training import batches
from fnll.types import Batch

PADDING = -100  # the `ignore_index` of F.cross_entropy and F.nll_loss
NUMBERS = (bool, int, float)
_TENSOR, _NUMBER = "a tensor", "a number"  # stand for these where only the rest of a batch is told
_, _EMPTY = tree_flatten({})


class Row(NamedTuple):
    """A batch of one lane, taken apart."""

    tensors: list[Tensor]  # views, labels, positions, and the tensors among the extras
    numbers: list[float]  # epoch, step, and the numbers among the extras
    views: int
    tree: TreeSpec  # of the extras
    plain: tuple[Any, ...]  # leaves of the extras that are neither

    @property
    def size(self) -> int:
        """Samples in it."""
        return self.tensors[self.views].shape[0]  # `len` of a tensor asks Python first

    @property
    def form(self) -> Hashable:
        """What rows of one step have in common."""
        return tuple((t.shape, t.dtype) for t in self.tensors), self.views, self.tree, self.plain


def plain_row(images: Tensor, labels: Tensor, positions: Tensor, epoch: int, step: int) -> Row:
    """A batch with one view and nothing drawn."""
    return Row([images, labels, positions], [epoch, step], 1, _EMPTY, ())


def rows_of(lane: Lane) -> Iterator[Row]:
    """The batches of a lane with everything random in them, drawn as the lane alone would draw it."""
    source, client = batches(lane.request), lane.request.client
    while True:
        with lane.around():
            batch = next(source, None)
            if batch is None:
                return
            drawn = lane.module.draw(batch, client)
        tensors = [*drawn.views, drawn.y, drawn.index]
        numbers: list[float] = [drawn.epoch, drawn.step]
        tree, plain = _EMPTY, cast(tuple[Any, ...], ())
        if drawn.extras:
            leaves, tree = tree_flatten(dict(drawn.extras))
            tensors += [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            numbers += [leaf for leaf in leaves if type(leaf) in NUMBERS]
            plain = tuple(_kept(leaf) for leaf in leaves)
        yield Row(tensors, numbers, len(drawn.views), tree, plain)


def _kept(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return _TENSOR
    return _NUMBER if type(leaf) in NUMBERS else leaf


def padded(row: Row, like: Row) -> Row:
    """`row` with as many samples as `like`."""
    n, size = row.size, like.size
    if n == size or len(row.tensors) != len(like.tensors):
        return row
    longer = []
    for i, (own, other) in enumerate(zip(row.tensors, like.tensors, strict=True)):
        each = own.ndim > 0 and len(own) == n and len(other) == size  # one entry for each sample
        longer.append(torch.cat([own, _filling(i - row.views, own, other[n:])]) if each else own)
    return row._replace(tensors=longer)


def _filling(place: int, own: Tensor, other: Tensor) -> Tensor:
    """What follows the samples of a short batch; `place` counts from the labels, which positions and extras follow."""
    if place == 1:
        return own[:1].expand(len(other))  # a position that the client has
    if place == 0 or (place > 1 and own.dtype == torch.int64 and own.ndim == 1):
        return torch.full_like(other, PADDING)
    return other


def turned(row: Row, size: int) -> Row:
    """A padded row whose views go on after `size` samples with other images, which also differ between the views."""
    seen = enumerate(row.tensors[: row.views], start=1)
    views = [torch.cat([view[:size], -i * view[size:].flip(-2)]) for i, view in seen]
    return row._replace(tensors=[*views, *row.tensors[row.views :]])


class Stack(NamedTuple):
    """Rows of one form, lane by lane: the tensors of a vectorised step, and how a batch is made of them."""

    tensors: list[Tensor]  # numbers that differ between lanes come first
    numbers: tuple[float | None, ...]  # those that all lanes share, None in the places of the others
    row: Row

    @property
    def form(self) -> Hashable:
        return self.numbers, self.row.form

    def batch(self, tensors: Sequence[Tensor]) -> Batch:
        """One lane's batch out of its part of `tensors`."""
        rest = iter(tensors)
        epoch, step, *numbers = (next(rest) if number is None else number for number in self.numbers)
        views = tuple(next(rest) for _ in range(self.row.views))
        y, index = next(rest), next(rest)
        told = iter(numbers)
        given = {_TENSOR: rest, _NUMBER: told}
        leaves = [next(given[leaf]) if leaf is _TENSOR or leaf is _NUMBER else leaf for leaf in self.row.plain]
        return Batch(views, y, index, epoch, step, tree_unflatten(leaves, self.row.tree))  # type: ignore[arg-type]


def stack(rows: Sequence[Row], dtype: torch.dtype) -> Stack:
    """Rows of one form as one; switches are shared if they are equal, numbers never: each would be a kind of step."""
    first = rows[0]
    columns = list(zip(*(row.numbers for row in rows), strict=True))
    same = [type(column[0]) is bool and all(value is column[0] for value in column) for column in columns]
    device = first.tensors[0].device
    numbers = [as_tensor(column, dtype, device) for column, is_same in zip(columns, same, strict=True) if not is_same]
    parts = [torch.stack(column) for column in zip(*(row.tensors for row in rows), strict=True)]
    shared = tuple(column[0] if is_same else None for column, is_same in zip(columns, same, strict=True))
    return Stack([*numbers, *parts], shared, first)


def as_tensor(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers of lanes; whole ones stay whole."""
    kind = None if all(type(value) in (bool, int) for value in values) else dtype
    return torch.tensor(values, dtype=kind, device=device)
