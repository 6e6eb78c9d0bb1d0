"""The nouns of the benchmark: what a client is, and what passes between clients and server."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fnll.images import Images, InMemory, Transform
from fnll.seeding import derive, torch_rng, walk
from fnll.system.allocator import keep_freed_memory
from fnll.weights import Weights

Memory = Mapping[str, "Tensor | Weights"]

CPU = torch.device("cpu")
AUGMENT_AT_ONCE = 2048  # images augmented together: enough to amortise Python
AUGMENT_BYTES = 1 << 27  # and no more than this as floats: 2,048 images of 224x224 would take 1.2 GB


@dataclass(frozen=True)
class State:
    """What the server carries from round to round. Methods subclass it (a frozen dataclass) to carry more.

    Fields may be tensors, `Weights`, numbers, strings, None, and lists, tuples, dicts and frozensets of these, or other
    states: what a checkpoint can write without pickling.
    """

    weights: Weights


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's worth of a client's data."""

    views: tuple[Tensor, ...]  # differently augmented copies of the same images; one unless more were asked for
    y: Tensor
    index: Tensor  # positions in the client's data, so that per-sample state can be kept
    epoch: int
    step: int  # counts from 0 over all epochs
    extras: Mapping[str, Any] = field(default_factory=dict)  # what `Classifier.draw` added for the loss

    @property
    def x(self) -> Tensor:
        return self.views[0]

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        """The batch on another device; Lightning calls this when a `Trainer` drives the module."""
        views = tuple(view.to(device, non_blocking=non_blocking) for view in self.views)
        extras = {name: v.to(device) if isinstance(v, Tensor) else v for name, v in self.extras.items()}
        return replace(self, views=views, y=self.y.to(device, non_blocking=non_blocking), extras=extras)


@dataclass(frozen=True)
class Samples:
    """A client's part of the training set: images and *observed* labels. Clean labels are not reachable from here."""

    images: Images
    index: Tensor  # which of the images these are
    y: Tensor  # the labels to train on: the observed ones until a job corrects them
    observed: Tensor  # the labels the scenario gave
    transform: Transform
    num_classes: int

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: Tensor, device: torch.device) -> Tensor:
        """Stored pixels of the given positions, on `device`."""
        return self.images.take(self.index[rows]).to(device, non_blocking=True)


class Stretch(NamedTuple):
    """Successive batches of one epoch in one piece."""

    views: list[Tensor]
    y: Tensor
    positions: Tensor  # among the client's samples
    epoch: int


@dataclass(frozen=True)
class Client:
    """Everything one client's computation may depend on besides the server's message."""

    id: int
    t: int  # the round, as the method counts it
    data: Samples
    memory: Memory  # whatever this client's earlier jobs chose to keep
    seed: int  # already unique to (run, round, client, job)
    device: torch.device = CPU

    def __len__(self) -> int:
        return len(self.data)

    def generator(self, *path: int | str) -> torch.Generator:
        """Randomness of this job, addressed by `path`."""
        return torch_rng(self.seed, *path)

    def batches(self, size: int, epochs: int, *path: int | str, views: int = 1) -> Iterator[Batch]:
        """Shuffled, augmented batches; their order and content are fixed by the client's seed and `path`.

        The last batch of an epoch may be smaller; nothing is dropped.
        """
        step = 0
        for drawn, labels, rows, epoch in self.stretches(size, epochs, *path, views=views):
            # One call each, not one per step; unsafe_split does without autograd's account of views of one tensor.
            parts = zip(*(torch.unsafe_split(view, size) for view in drawn), strict=True)
            ends = torch.unsafe_split(labels, size), torch.unsafe_split(rows, size)
            for seen, y, index in zip(parts, *ends, strict=True):
                yield Batch(seen, y, index, epoch, step)
                step += 1

    def stretches(self, size: int, epochs: int, *path: int | str, views: int = 1) -> Iterator[Stretch]:
        """The same before it is cut into batches: as many of them at a time as are augmented in one piece."""
        keep_freed_memory()  # the next epoch's images are as many as this one's
        at_once = size * max(1, min(AUGMENT_AT_ONCE, AUGMENT_BYTES // (4 * math.prod(self.data.images.shape))) // size)
        orders = (torch.randperm(len(self), generator=self.generator("order", *path, e)) for e in range(epochs))
        undrawn = views == 1 and not self.data.transform.augmentations and isinstance(self.data.images, InMemory)
        if undrawn and 0 < len(self) * epochs <= at_once:
            yield from self._undrawn(torch.stack([*orders]))
            return
        for epoch, order in enumerate(orders):
            for start in range(0, len(self), at_once):
                rows, following = order[start : start + at_once], order[start + at_once : start + 2 * at_once]
                pixels = self.data.take(rows, self.device)
                if len(following):
                    self.data.images.prefetch(self.data.index[following])  # a streaming store decodes while we train
                drawn = [
                    self.data.transform.augmented(pixels, self.generator("augment", *path, epoch, start, view))
                    for view in range(views)
                ]
                yield Stretch(drawn, self.data.y[rows].to(self.device), rows, epoch)

    def _undrawn(self, orders: Tensor) -> Iterator[Stretch]:
        """All epochs (a row of positions each) of images that nothing random happens to: made at once, they are few."""
        images = self.data.transform.plain(self.data.take(orders.flatten(), self.device)).unflatten(0, orders.shape)
        labels = self.data.y[orders].to(self.device)
        for epoch, (seen, y, order) in enumerate(zip(images, labels, orders, strict=True)):
            yield Stretch([seen], y, order, epoch)

    def scan(self, size: int = 512, *path: int | str, augment: bool = False, shuffled: bool = False) -> Iterator[Batch]:
        """All samples once, in order; `augment` draws one random view, as the official codes do.

        `shuffled` walks in a fixed random order instead, for networks that normalise by the batch; `Batch.index` says
        which samples came.
        """
        order = walk(len(self)) if shuffled else torch.arange(len(self))
        for step, start in enumerate(range(0, len(self), size)):
            rows = order[start : start + size]
            pixels = self.data.take(rows, self.device)
            self.data.images.prefetch(self.data.index[order[start + size : start + 2 * size]])
            transform = self.data.transform
            x = (
                transform.augmented(pixels, self.generator("scan", *path, start))
                if augment
                else transform.plain(pixels)
            )
            yield Batch((x,), self.data.y[rows].to(self.device), rows, 0, step)

    def with_labels(self, y: Tensor) -> Client:
        """The same client training on other labels."""
        if y.shape != self.data.y.shape:
            raise ValueError(f"client {self.id} has {len(self)} samples, got {len(y)} labels")
        return replace(self, data=replace(self.data, y=y.to(torch.int64)))

    def subset(self, keep: Tensor) -> Client:
        """The same client with the samples that `keep` names (a mask or positions); `Batch.index` counts in these."""
        data = self.data
        chosen = replace(data, index=data.index[keep], y=data.y[keep], observed=data.observed[keep])
        return replace(self, data=chosen)

    def reseeded(self, *path: int | str) -> Client:
        """The same client with randomness of its own, for a second training in one job."""
        return replace(self, seed=derive(self.seed, *path))

    def class_counts(self) -> Tensor:
        """How many samples carry each label, (num_classes,)."""
        return torch.bincount(self.data.y, minlength=self.data.num_classes)


@dataclass(frozen=True)
class Update:
    """What a job hands back. Each field has exactly one reader."""

    weights: Weights | None = None  # the server aggregates these
    report: Mapping[str, Tensor | float] = field(default_factory=dict)  # the server's algorithm reads these
    memory: Memory = field(default_factory=dict)  # merged into this client's memory; never reaches the server
    trace: Mapping[str, Tensor] = field(default_factory=dict)  # read by the evaluator only, see docs/metrics.md
    labels: Tensor | None = None  # corrected labels: this client's `data.y` from now on, for every later job
    client: int = -1  # stamped by the runtime
    size: int | None = None  # stamped by the runtime unless the job sets it


@dataclass(frozen=True)
class Each:
    """A message field that differs per client, aligned with the cohort."""

    values: Sequence[Any]


Job = Callable[..., "Update | Generator[Any, Any, Update]"]  # a generator asks for its training: see fnll.local.Fit


def job_name(job: Job) -> str:
    """What a job is called in seeds, records and messages; a `functools.partial` as the function inside it."""
    while isinstance(job, partial):
        job = job.func
    return str(getattr(job, "__name__", type(job).__name__))


@dataclass(frozen=True)
class Call:
    """One job for one client: what travels to an executor."""

    job: Job
    client: int
    t: int
    message: Mapping[str, Any]
    memory: Memory
    labels: Tensor | None  # corrected labels from earlier jobs
    seed: int

    @property
    def name(self) -> str:
        return job_name(self.job)
