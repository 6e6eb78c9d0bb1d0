"""Images that do not fit in memory: decoded by threads when asked for, or a little before."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fnll.images import Images
from fnll.scenario.datasets.contents import content_of
from fnll.scenario.datasets.decoding import Decoder, decoded, threads
from fnll.scenario.datasets.sources import Source

AT_ONCE = 16  # images that one thread decodes in one go
AHEAD = 2  # chunks that may wait to be taken, so that hints nobody follows do not fill the memory

Chunk = tuple[Tensor, list["Future[None]"]]


@dataclass(frozen=True)
class Streaming:
    """A store that reads its images from files on every `take`.

    `prefetch(index)` starts decoding in the background; a later `take` of exactly that index waits only for the rest.
    """

    source: Source
    names: np.ndarray  # of the files, as bytes: a million of them in one block that travels cheaply
    decoder: Decoder
    _soon: dict[tuple[int, bytes], Chunk] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, source: Source, names: Sequence[str], decoder: Decoder) -> Streaming:
        return cls(source, np.array([name.encode() for name in names]), decoder)

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.decoder(self.source, self._name(0)).shape
        return channels, height, width

    @cached_property
    def digest(self) -> str:
        """A hash of the files' names and content and of how they are decoded; the first to ask reads every file."""
        content = content_of(self.source, [name.decode() for name in self.names])
        return hashlib.blake2b(f"{self.decoder!r}\0{content}".encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    def take(self, index: Tensor) -> Tensor:
        key = self._key(index)
        pixels, tasks = self._soon.pop(key) if key in self._soon else self._start(index)
        for task in tasks:
            task.result()
        return pixels

    def prefetch(self, index: Tensor) -> None:
        while len(self._soon) >= AHEAD:
            _, tasks = self._soon.pop(next(iter(self._soon)))
            for task in tasks:
                task.cancel()
        self._soon[self._key(index)] = self._start(index)

    def select(self, index: Tensor) -> Streaming:
        return Streaming(self.source, self.names[index.numpy()], self.decoder)

    def _start(self, index: Tensor) -> Chunk:
        pixels = torch.empty((len(index), *self.shape), dtype=torch.uint8)
        rows = pixels.numpy()
        names = [self._name(i) for i in index.tolist()]
        tasks = [
            threads(os.getpid()).submit(self.decoder.into, rows[i : i + AT_ONCE], self.source, names[i : i + AT_ONCE])
            for i in range(0, len(names), AT_ONCE)
        ]
        return pixels, tasks

    def _name(self, i: int) -> str:
        return bytes(self.names[i]).decode()

    def _key(self, index: Tensor) -> tuple[int, bytes]:
        return os.getpid(), index.numpy().tobytes()  # a forked process must not wait for its parent's threads

    def __getstate__(self) -> dict[str, Any]:
        state = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**state, "_soon": {}}


def store(source: Source, names: Sequence[str], decoder: Decoder, *, streaming: bool) -> Images:
    """The images of these files, decoded once into the cache or each time they are needed."""
    return Streaming.of(source, names, decoder) if streaming else decoded(source, names, decoder)
