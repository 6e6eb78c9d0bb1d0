"""The batches of lanes that draw nothing of their own, laid out once for a whole training.

Taking batches apart and stacking them again, step by step and lane by lane, took longer than the steps of a small
network. Where a batch is what the client's data give, all of them are written into one piece of memory, in the order of
the steps, and a step reads its part as it lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fnll.executors.lanes import Lane
from fnll.executors.rows import PADDING, Row, Stack, plain_row
from fnll.local import Classifier

MOST = 1 << 26  # bytes of images in one piece


class Short(NamedTuple):
    """A batch with fewer samples than the others of its step."""

    lane: int
    size: int


class Layout(NamedTuple):
    """All batches of a training, (steps, lanes, ...); short ones are padded, and lanes that ended repeat their last."""

    epochs: Tensor  # (steps, lanes)
    numbers: Tensor  # (steps, lanes): the step, as each lane counts
    images: Tensor  # (steps, lanes, samples, ...)
    labels: Tensor  # (steps, lanes, samples)
    positions: Tensor  # likewise
    lanes: list[int]  # how many lanes are still training in each step
    sizes: list[list[int]]  # the samples of their batches

    def short(self, step: int) -> Short | None:
        """The first batch of a step that is padded; none if all are as long, be it short."""
        sizes = self.sizes[step]
        found = (k for k, size in enumerate(sizes) if size < self.images.shape[2])
        return None if len({*sizes}) == 1 else next((Short(k, sizes[k]) for k in found), None)

    def stack(self, step: int, lanes: int) -> Stack:
        """What the first so many lanes train on in one step."""
        sizes = {*self.sizes[step]}
        size = sizes.pop() if len(sizes) == 1 else None
        parts = [part[step, :lanes, :size].contiguous() for part in (self.images, self.labels, self.positions)]
        tensors = [self.epochs[step, :lanes], self.numbers[step, :lanes], *parts]
        return Stack(tensors, (None, None), self.row(step, 0, size))

    def row(self, step: int, lane: int, size: int | None = None) -> Row:
        """The batch of one lane, with `size` its samples without padding."""
        images, labels, positions = (part[step, lane, :size] for part in self[2:5])
        return plain_row(images, labels, positions, int(self.epochs[step, lane]), step)


def laid_out(lanes: Sequence[Lane], spare: int) -> Layout | None:
    """The batches of `lanes`, most steps first, and of `spare` more that repeat the last; None: lay no batches out."""
    draws = any(type(lane.module).draw is not Classifier.draw or lane.request.views != 1 for lane in lanes)
    clients = [lane.request.client for lane in lanes]
    forms = {client.data.transform.shape(client.data.images.shape) for client in clients}
    longest = max(clients, key=len)
    size = min(lanes[0].module.spec.batch_size, len(longest))
    form = (lanes[0].steps, len(lanes) + spare)
    if draws or len(forms) > 1 or size == 0 or 4 * math.prod((*form, size, *forms.pop())) > MOST:
        return None
    return _filled(lanes, form, size, clients.index(longest))


def _filled(lanes: Sequence[Lane], form: tuple[int, int], size: int, longest: int) -> Layout:
    first, device = _sources(lanes[longest]), lanes[0].request.client.device
    images = first[0].new_zeros(*form, size, *first[0].shape[2:])
    labels = torch.full((*form, size), PADDING, device=device)
    positions, epochs = torch.zeros_like(labels), torch.zeros(form, dtype=torch.int64, device=device)
    numbers = torch.arange(form[0], device=device)[:, None].expand(form)
    for k, lane in enumerate(lanes):
        if not (steps := lane.steps):
            continue  # a client without samples takes no step
        sources = first if k == longest else _sources(lane)
        per_epoch = steps // len(sources[0])
        whole, rest = divmod(sources[0].shape[1], lane.module.spec.batch_size)
        for part, source in zip((images, labels, positions), sources, strict=True):
            own = part[:steps, k].unflatten(0, (-1, per_epoch))
            if whole:
                own[:, :whole] = source[:, : whole * size].unflatten(1, (whole, size))
            if rest:
                own[:, whole, :rest] = source[:, whole * size :]
        if 0 < rest < size:
            images[:steps, k].unflatten(0, (-1, per_epoch))[:, whole, rest:] = first[0][0, rest:size]
        epochs[:steps, k] = torch.arange(len(sources[0]), device=device).repeat_interleave(per_epoch)
        for part in (images, labels, positions, epochs):
            part[steps:, k] = part[steps - 1, k]
    for part in (images, labels, positions, epochs):
        part[:, len(lanes) :] = part[:, len(lanes) - 1 : len(lanes)]
    every = [_sizes(lane) for lane in lanes]
    sizes = [[own[step] for own in every if step < len(own)] for step in range(form[0])]
    return Layout(epochs, numbers, images, labels, positions, [len(some) for some in sizes], sizes)


def _sizes(lane: Lane) -> list[int]:
    """How many samples the batch of each of a lane's steps has."""
    size = lane.module.spec.batch_size
    whole, rest = divmod(len(lane.request.client), size)
    return ([size] * whole + [rest] * (rest > 0)) * lane.module.spec.epochs


def _sources(lane: Lane) -> list[Tensor]:
    """What a lane trains on, a row for each epoch: images, labels and positions."""
    spec, request = lane.module.spec, lane.request
    pieces = list(request.client.stretches(spec.batch_size, spec.epochs, *request.path))
    columns = zip(*((piece.views[0], piece.y, piece.positions) for piece in pieces), strict=True)
    return [torch.cat(column).unflatten(0, (spec.epochs, -1)) for column in columns]
