"""Addressed randomness: every generator is derived from a path such as `(seed, "client", t, k, "train", 0)`.

Nothing is streamed, so there is no generator state to checkpoint, no dependence on the order of execution, and every
method sees the same cohorts, initial weights and batches for a seed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

Path = tuple["int | str", ...]


def derive(*path: int | str) -> int:
    """A 63-bit seed that depends on the whole path and on nothing else.

    The encoding is fixed (type, length, text), so it does not lean on `repr`; changing it changes every result.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in path:
        if isinstance(part, bool) or not isinstance(part, (int, str, np.integer)):
            raise TypeError(f"a seed path holds ints and strings only, got {part!r} in {path!r}")
        kind = "s" if isinstance(part, str) else "i"
        text = str(part).encode()
        digest.update(f"{kind}{len(text)}:".encode() + text)
    return int.from_bytes(digest.digest(), "big") >> 1


def numpy_rng(*path: int | str) -> np.random.Generator:
    """A numpy generator addressed by `path`."""
    return np.random.default_rng(derive(*path))


def torch_rng(*path: int | str) -> torch.Generator:
    """A CPU torch generator addressed by `path`; the same draws whatever device the numbers are used on."""
    return torch.Generator().manual_seed(derive(*path))


def walk(n: int) -> torch.Tensor:
    """A random order of `n` samples that is the same everywhere, in which batch-dependent networks are shown them."""
    return torch.randperm(n, generator=torch_rng("walk", n))


@contextmanager
def scoped(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators for one computation and put back what they were.

    Dropout and weight initialisation draw from the global generators; everything of ours uses addressed ones.
    """
    with Streams(seed, device).active():
        yield


class Streams:
    """The global generators of one computation that is done in pieces, with others in between.

    They start from `seed`, or as they are if there is none.
    """

    def __init__(self, seed: int | None, device: torch.device | None = None) -> None:
        self._seed = seed
        self._gpus = [device] if device is not None and device.type == "cuda" else []
        self._saved: list[Any] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the global generators be this computation's, and afterwards what they were."""
        outside = self._state()
        if self._saved is not None:
            self._set(self._saved)
        elif self._seed is not None:
            self._start(self._seed)
        try:
            yield
        finally:
            self._saved = self._state()
            self._set(outside)

    def _state(self) -> list[Any]:
        gpus = [torch.cuda.get_rng_state(gpu) for gpu in self._gpus]
        return [torch.get_rng_state(), np.random.get_state(), random.getstate(), *gpus]

    def _set(self, state: list[Any]) -> None:
        cpu, numpy_state, python_state, *gpus = state
        torch.set_rng_state(cpu)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        for gpu, own in zip(self._gpus, gpus, strict=True):
            torch.cuda.set_rng_state(own, gpu)

    def _start(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also notes a stack trace for each absent GPU
        for gpu in self._gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
