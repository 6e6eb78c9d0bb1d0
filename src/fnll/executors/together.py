"""Local training of several clients at once: stacked parameters, and `torch.func.vmap` over the loss.

Lanes are sorted by their number of steps, so that those still training are always the first ones and no row is copied
to let some of them step. They are trained in blocks that the processor's caches can hold.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten

from fnll.executors.constants import Constants
from fnll.executors.habits import DifferentNumbersError, Habits, NotTogetherError
from fnll.executors.lanes import Lane, attributes
from fnll.executors.layers import stacked_layers
from fnll.executors.layout import Layout, laid_out
from fnll.executors.program import Step
from fnll.executors.rows import Row, Stack, padded, rows_of, stack, turned
from fnll.executors.stacked import Rows, chosen, stacked_optimizer
from fnll.local import Classifier, Trained
from fnll.seeding import Held
from fnll.weights import snapshot

BLOCK = 1 << 18  # trained numbers of the lanes in a block: more would not stay in the caches from step to step
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64)  # lanes in a block; few, since each is traced apart
TRACED = 1e-3  # how far a traced step may be from the plain one, of the largest number in it
PADDED = 1e-5  # and one with padding, which only adds zeros


class _PaddingCountsError(Exception):
    """The loss does not leave padding out, or one cannot tell in this training."""

    def __init__(self, *, proved: bool = True) -> None:
        super().__init__()
        self.proved = proved


def train_together(lanes: Sequence[Lane], habits: Habits | None = None) -> list[Trained]:
    """Train the modules of `lanes` in place; the results are in their order."""
    habits = Habits() if habits is None else habits
    order = sorted(range(len(lanes)), key=lambda k: -lanes[k].steps)
    size = block_size(sum(value.numel() for value in lanes[0].moved_tensors()))
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    blocks = [_train([lanes[k] for k in part], habits) for part in parts]
    results: dict[int, Trained] = {}  # written once all have come to their ends: else some would be trained twice
    for part, block in zip(parts, blocks, strict=True):
        results |= zip(part, block.written(), strict=True)
    return [results[k] for k in range(len(lanes))]


def block_size(numbers: int) -> int:
    """Lanes of a network with so many trained numbers that are best trained in one block."""
    return max((size for size in SIZES if size * numbers <= BLOCK), default=0) if numbers <= BLOCK // 8 else 8


def _train(lanes: Sequence[Lane], habits: Habits) -> Block:
    kind = habits.of(lanes[0].key)
    if not kind.unpadded:
        try:
            return Block(lanes, habits, pads=True).trained()
        except _PaddingCountsError as error:
            kind.unpadded = error.proved
    return Block(lanes, habits, pads=False).trained()


class Block:
    """Lanes of one key, longest first, and their parameters as stacks."""

    def __init__(self, lanes: Sequence[Lane], habits: Habits, *, pads: bool) -> None:
        self.lanes, self.habits, self.pads = lanes, habits, pads
        self.module = lanes[0].module
        self.strict = habits.of(lanes[0].key).strict  # whether lanes must have equal numbers
        self.spare = _size(len(lanes)) - len(lanes)  # copies that are computed with and never moved: a known size
        every = [*lanes, *[lanes[-1]] * self.spare]
        self.sizes = _halves(len(every))
        columns = zip(*(lane.moved_tensors() for lane in every), strict=True)
        self.params = [torch.stack([value.detach() for value in column]) for column in columns]
        self.optimizer = stacked_optimizer([lane.optimizer for lane in every], self.params)
        self.constants = Constants(every, self.params[0].dtype, strict=self.strict)
        self.kind = habits.of((lanes[0].key, self.constants.form)).number
        self.doubts: dict[Hashable, bool] = {}  # by forms of batches: whether a traced step is still to be compared
        self.full: Row | None = None  # the longest row, which others are padded to
        self.padding = False  # whether the loss was seen not to count it: in every training, as weights of terms change
        self.watched = False  # whether a loss was seen to leave its module alone: what the first step does, others do

    def trained(self) -> Block:
        """Train the stacks."""
        generators = Held(self.params[0].device)
        try:
            with stacked_layers(self.module):
                whole = laid_out(self.lanes, self.spare) if self.pads and not self.strict else None
                if whole is None:
                    self._train_by_rows()
                else:
                    self._train_as_laid_out(whole)
        finally:
            drawn = generators.put_back()
        if drawn:
            raise NotTogetherError("it draws from the global generators, which are one client's at a time")
        return self

    def written(self) -> list[Trained]:
        """Write the stacks into the modules of the lanes."""
        return [self._written(lane, k) for k, lane in enumerate(self.lanes)]

    def _train_as_laid_out(self, whole: Layout) -> None:
        for step, lanes in enumerate(whole.lanes):
            if (short := whole.short(step)) is not None and not self.padding:
                k, size = short
                self._check_padding(k, whole.row(step, k, size), whole.row(step, k))
                self.padding = True
            size = self._size(lanes)
            self._move(whole.stack(step, size), lanes, lanes, size)

    def _train_by_rows(self) -> None:
        streams = [rows_of(lane) for lane in self.lanes]
        while rows := [row for stream in streams if (row := next(stream, None)) is not None]:
            streams = streams[: len(rows)]  # lanes with fewer steps are behind those with more
            for members, own in self._groups(rows):
                self._step(members, own)

    def _groups(self, rows: list[Row]) -> Iterator[tuple[Rows, list[Row]]]:
        """The rows of a step by their form; after padding that is one group, unless a loss cannot take it."""
        sizes = {row.size for row in rows}
        self.full = self.full or max(rows, key=lambda row: row.size)
        if self.pads and len(sizes) > 1:
            full = self.full
            longer = [padded(row, full) for row in rows]
            short = next((k for k, row in enumerate(rows) if row is not longer[k]), None)
            if short is not None and not self.padding:
                self._check_padding(short, rows[short], longer[short])
                self.padding = True
            rows = longer
        by_form: dict[Hashable, list[int]] = defaultdict(list)
        for k, row in enumerate(rows):
            by_form[row.form, tuple(row.numbers[2:]) if self.strict else None].append(k)
        for members in by_form.values():
            which: Rows = len(rows) if len(members) == len(rows) else torch.tensor(members)
            yield which, [rows[k] for k in members]

    def _step(self, members: Rows, rows: list[Row]) -> None:
        count = len(rows)
        size = self._size(count)
        stacked = stack([*rows, *rows[-1:] * (size - count)], self.params[0].dtype)
        self._move(stacked, members, count, size)

    def _size(self, lanes: int) -> int:
        """The known size of a step with so many lanes."""
        return next(size for size in self.sizes if size >= lanes)

    def _move(self, stacked: Stack, members: Rows, count: int, size: int) -> None:
        """Take one step: `size` lanes are computed with, the `count` that are `members` move."""
        if isinstance(members, int):
            reached: Rows = size
        else:
            members = members.to(self.params[0].device)
            reached = torch.cat([members, members[-1:].expand(size - count)])
        arguments = [chosen(self.params, reached), *self.constants.arguments(reached), stacked.tensors]
        gradients = self._gradients(stacked, size, arguments)
        self.optimizer.step([gradient[:count] for gradient in gradients], members)

    def _gradients(self, stacked: Stack, size: int, arguments: list[list[Tensor]]) -> Sequence[Tensor]:
        step = self._plain(stacked)
        kind = (self.kind, size, stacked.form)
        programs = self.habits.programs
        program = programs.of(kind, step, arguments)
        if program is None:
            return step(*arguments)[1:]
        if stacked.form not in self.doubts:
            self.doubts[stacked.form] = programs.doubts((self.kind, stacked.form))
        if kind in programs.trusted and not self.doubts[stacked.form]:
            return program(*arguments)[1:]
        plain = step(*arguments)
        alike = _alike(program(*arguments), plain, TRACED)
        if alike:
            programs.trusted.add(kind)
            if self.doubts[stacked.form]:
                programs.proved((self.kind, stacked.form))
            self.doubts[stacked.form] = False
        elif alike is not None:
            programs.refuse(kind)
        return plain[1:]

    def _check_padding(self, k: int, row: Row, longer: Row) -> None:
        """Compare a lane's loss and gradient without padding, with it, and with another one, which must change no bit.

        In the first step and in a late one; in every training, since a method may raise the weight of a term that
        counts padding from round to round, and start from 0.
        """
        times = [row.numbers[:2], [self.module.spec.epochs - 1.0, self.lanes[k].steps - 1.0]]
        without = self._tried(k, [row], times)
        try:
            filled = self._tried(k, [longer, turned(longer, row.size)], times)
        except (RuntimeError, IndexError, DifferentNumbersError):  # without padding it went well, so padding it was
            raise _PaddingCountsError from None
        one, other = ([part[start : start + len(times)] for part in filled] for start in (0, len(times)))
        found = _alike(one, without, PADDED), _alike(other, one, 0.0)
        if not all(found):
            raise _PaddingCountsError(proved=False in found)

    def _tried(self, k: int, rows: Sequence[Row], times: Sequence[Sequence[float]]) -> tuple[Tensor, ...]:
        """Losses and gradients of lane `k` for each row at each time, all in one plain step."""
        every = [row._replace(numbers=[*map(int, time), *row.numbers[2:]]) for row in rows for time in times]
        stacked = stack(every, self.params[0].dtype)
        lanes = torch.tensor([k] * len(every), device=self.params[0].device)
        return self._plain(stacked)(chosen(self.params, lanes), *self.constants.arguments(lanes), stacked.tensors)

    def _plain(self, stacked: Stack) -> Step:
        """The step as a function of parameters, constants and batches, by `vmap` and autograd.

        Only the forward pass is vectorised by `vmap`; going backward through what it did is plain autograd, which
        spares the bookkeeping of `torch.func.grad`.
        """

        def loss(own: list[Tensor], differing: list[Tensor], shared: list[Tensor], tensors: list[Tensor]) -> Tensor:
            with self.constants.in_place(own, differing, shared):
                before = None if self.watched else _marks(self.module)
                result = self.module.loss(stacked.batch(tensors))
                if before is not None and _marks(self.module) != before:
                    raise NotTogetherError(f"{type(self.module).__name__} changes itself while it trains")
                self.watched = True
                return result

        def step(
            params: list[Tensor], differing: list[Tensor], shared: list[Tensor], tensors: list[Tensor]
        ) -> tuple[Tensor, ...]:
            own = [value.detach().requires_grad_() for value in params]
            losses = self._losses(stacked, loss, own, differing, shared, tensors)
            # A client's loss depends on its own row alone: the gradient of the sum is everyone's own gradient.
            gradients = torch.autograd.grad(losses.sum(), own, allow_unused=True)
            if any(gradient is None for gradient in gradients):
                raise NotTogetherError("its loss leaves parameters unused")
            return (losses.detach(), *gradients)

        return step

    def _losses(
        self, stacked: Stack, loss: Callable[..., Tensor], own: list[Tensor], differing: list[Tensor], *rest: Any
    ) -> Tensor:
        try:
            return vmap(loss, in_dims=(0, 0 if differing else None, None, 0))(own, differing, *rest)
        except NotTogetherError:
            raise
        except Exception as error:
            if self.constants.numbers_differ or None in stacked.numbers[2:]:
                raise DifferentNumbersError from error
            raise

    def _written(self, lane: Lane, k: int) -> Trained:
        with torch.no_grad():
            for own, values in zip(lane.moved_tensors(), self.params, strict=True):
                own.copy_(values[k])
        return Trained(snapshot(lane.module.net), {})


def _size(lanes: int) -> int:
    return next((size for size in SIZES if size >= lanes), lanes)


def _halves(lanes: int) -> list[int]:
    """Numbers of lanes in the steps of a block, smallest first: few, though its lanes may end one by one."""
    return [lanes] if lanes == 1 else [*_halves(math.ceil(lanes / 2)), lanes]


def _alike(left: Sequence[Tensor], right: Sequence[Tensor], share: float) -> bool | None:
    """Whether losses and gradients agree, lane by lane, where the right ones are finite; None if they are nowhere."""
    finite = torch.stack([value.reshape(len(value), -1).isfinite().all(1) for value in right]).all(0)
    if not finite.any():
        return None
    pairs = [(a[finite], b[finite]) for a, b in zip(left, right, strict=True)]
    scale = max(float(b.abs().max()) for _, b in pairs)
    return all(float((a - b).abs().max()) <= share * scale for a, b in pairs)


def _marks(module: Classifier) -> tuple[Any, ...]:
    """Whatever changes if a loss writes to its module: the form of its attributes, tensors' versions, other values."""
    leaves, tree = tree_flatten(attributes(module))
    tensors = [leaf for leaf in [*leaves, *module.parameters(), *module.buffers()] if isinstance(leaf, Tensor)]
    return tree, [id(leaf) for leaf in leaves], [leaf._version for leaf in tensors]
