"""A data set split over clients with noisy labels, kept apart from the truth about it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fnll.images import Images, Transform
from fnll.types import Client, Memory, Samples

Shards = tuple[Tensor, ...]

UNKNOWN = -1  # in place of a clean label that nobody knows
CLEAN, OBSERVED = "clean", "observed"  # what the labels of a test set are


@dataclass(frozen=True)
class Dataset:
    """Images and labels as published, before any partition or injected noise."""

    name: str
    train: Images
    labels: Tensor  # the published training labels: clean unless `native_noise`
    test: Images
    test_labels: Tensor
    num_classes: int
    transform: Transform
    native_noise: bool = False  # the published labels are noisy and the clean ones unknown (Clothing1M, WebVision)
    annotations: Mapping[str, Tensor] = field(default_factory=dict)  # further label sets (CIFAR-N), for noise=human
    class_names: tuple[str, ...] = ()
    rearranged: str | None = None  # if the order is not the published one: what to type for that
    validation: Tensor | None = None  # positions that no client trains on; they keep their observed (noisy) labels
    owners: Tensor | None = None  # whose a training sample is, where the data say it, for partition=given
    client_names: tuple[str, ...] = ()  # of those owners
    names: tuple[str, ...] = ()  # what people call the training samples: their files
    reviewed: Tensor | None = None  # of noisy labels, the clean ones where somebody knows them; UNKNOWN elsewhere
    test_truth: str = CLEAN  # OBSERVED: the test labels may be wrong as those trained on may, and are all there is

    @cached_property
    def digest(self) -> str:
        """A hash of images and labels, training and test."""
        return _hash(self.train.digest, self.labels, self.test.digest, self.test_labels, self.num_classes)


class Partition(Protocol):
    """Splits samples over clients: a tuple of disjoint index arrays."""

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]: ...


@runtime_checkable
class GivenByData(Protocol):
    """A partition that takes the clients which the data name, however many they are."""

    def given(self, dataset: Dataset) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class NoisyLabels:
    """What a noise model returns."""

    labels: np.ndarray  # observed labels of the whole training set
    nominal: np.ndarray  # the noise level each client was meant to have, (clients,); NaN where there is none


class Noise(Protocol):
    """Corrupts labels, client by client."""

    def __call__(self, dataset: Dataset, shards: list[np.ndarray], seed: int) -> NoisyLabels: ...


@dataclass(frozen=True)
class Scenario:
    """Built once, shared read-only by every method and worker. It holds no clean label and no test image."""

    images: Images
    labels: Tensor  # observed labels of the whole training set
    shards: Shards  # client k owns shards[k]
    num_classes: int
    transform: Transform
    fingerprint: str  # of labels, shards, images and the test set
    origin: str  # fingerprint of the scenario this was made from: an oracle's is that of the noisy scenario
    name: str = ""  # of the data set, for people
    client_names: tuple[str, ...] = ()  # where clients have names; see `called`

    def called(self, k: int) -> str:
        """What people call client `k`."""
        return self.client_names[k] if self.client_names else str(k)

    def client(
        self, k: int, *, t: int, memory: Memory, labels: Tensor | None, seed: int, device: torch.device
    ) -> Client:
        """Client `k` as a job sees it; `labels` are its corrected labels, if any."""
        index = self.shards[k]
        observed = self.labels[index]
        y = observed if labels is None else labels
        data = Samples(self.images, index, y, observed, self.transform, self.num_classes)
        return Client(k, t, data, memory, seed, device)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(shard) for shard in self.shards)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return self.transform.shape(self.images.shape)


@dataclass(frozen=True)
class Truth:
    """What only the evaluator may know: the clean labels, the noise levels, and the test set."""

    labels: Tensor | None  # clean labels of the training set; None where nobody knows them
    nominal: Tensor  # (clients,) noise level a client was meant to have; NaN where there is none
    realised: Tensor  # (clients,) share of its labels that differ from the clean ones; NaN where unknown
    test: Images
    test_labels: Tensor
    validation: Tensor | None = None  # positions held out of the clients' data, for selection by noisy labels
    reviewed: Tensor | None = None  # where not all clean labels are known: those that are, UNKNOWN elsewhere
    test_truth: str = CLEAN

    @cached_property
    def digest(self) -> str:
        """A hash of what a scenario's fingerprint does not tell: the noise levels and the held-out positions."""
        held = "none" if self.validation is None else self.validation
        return _hash(self.nominal.double().contiguous().view(torch.int64), held)

    @property
    def noisy_clients(self) -> set[int]:
        """Clients with at least one wrong label."""
        return {k for k, level in enumerate(self.realised.tolist()) if level > 0}


def fingerprint(images: Images, labels: Tensor, shards: Shards, test: Images, test_labels: Tensor) -> str:
    """Twelve hex digits that identify a scenario: observed labels, shards, images and the test set."""
    parts = [
        images.digest,
        labels,
        test.digest,
        test_labels,
        len(shards),
        *(part for s in shards for part in (len(s), s)),
    ]
    return _hash(*parts)[:12]


def _hash(*parts: object) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Tensor):
            array = np.ascontiguousarray(part.numpy().astype("<i8"))
            digest.update(f"t{array.shape}".encode())
            digest.update(array.tobytes())
        else:
            digest.update(f"s{part}".encode())
    return digest.hexdigest()
