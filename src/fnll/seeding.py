"""Addressed randomness: every generator is derived from a path such as `(seed, "client", t, k, "train", 0)`.

Nothing is streamed, so there is no generator state to checkpoint, no dependence on the order of execution, and every
method sees the same cohorts, initial weights and batches for a seed.
"""

from __future__ import annotations

import ctypes
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


Places = tuple[Any, ...]

_holders: list[Streams | None] = []  # whose the global generators are in each `lent` that this process is in


@contextmanager
def lent(device: torch.device | None = None) -> Iterator[None]:
    """Let computations take turns with the global generators (`Streams.take`); afterwards these are what they were.

    Generators change hands only when another computation takes them: reading and writing their thousands of numbers
    around every piece of every client's job was a tenth of the time of a small network's round.
    """
    gpus = _gpus(device)
    outside = _state(gpus)
    _holders.append(None)
    try:
        yield
    finally:
        _holders.pop()
        _set(outside, gpus)


class Streams:
    """The global generators of one computation that is done in pieces, with others in between.

    They start from `seed`, or as they are if there is none.
    """

    def __init__(self, seed: int | None, device: torch.device | None = None) -> None:
        self._seed = seed
        self._device, self._gpus = device, _gpus(device)
        self._saved: list[Any] | None = None
        self._fresh: Places | None = None  # where the generators stand right after they were seeded

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the global generators be this computation's, and afterwards what they were."""
        with lent(self._device):
            self.take()
            try:
                yield
            finally:
                self._saved = _state(self._gpus)

    def take(self) -> None:
        """Let the global generators be this computation's until another takes them."""
        holder = _holders[-1]
        if holder is self:
            return
        if holder is not None:
            holder._keep()
        if self._saved is not None:
            _set(self._saved, self._gpus)
        elif self._seed is not None:
            self._start(self._seed)
        _holders[-1] = self

    def end(self) -> None:
        """The computation is over: where its generators stand need not be kept."""
        if _holders[-1] is self:
            _holders[-1] = None

    def _keep(self) -> None:
        """Note where the generators stand; who has drawn nothing from them can as well start again."""
        if self._saved is None and self._fresh is not None and self._fresh == _places(self._gpus):
            return
        self._saved = _state(self._gpus)

    def _start(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also notes a stack trace for each absent GPU
        for gpu in self._gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        self._fresh = self._fresh or _places(self._gpus)


class Held:
    """Where the global generators stand, to see whether somebody draws from them, and to put them back."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._gpus = _gpus(device)
        self._places, self._kept = _places(self._gpus), _state(self._gpus)

    def put_back(self) -> bool:
        """Whether somebody drew; then they stand where they stood before."""
        if _places(self._gpus) == self._places:
            return False
        _set(self._kept, self._gpus)
        return True


def _gpus(device: torch.device | None) -> list[torch.device]:
    return [device] if device is not None and device.type == "cuda" else []


def _places(gpus: list[torch.device]) -> Places:
    """How far the generators are: other after any draw, and read in a quarter of the time of their whole state.

    That time is NumPy's, so of its Mersenne twister only the position is read, and the first of its 624 words, which
    changes when all of them have been used. `state_address` is where NumPy says that they lie.
    """
    twister = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if not isinstance(twister, np.random.MT19937):
        return (object(),)  # somebody has put another in its place
    words = (ctypes.c_uint32 * 625).from_address(twister.ctypes.state_address)
    _, key, gauss = random.getstate()
    own = [torch.cuda.get_rng_state(gpu).numpy().tobytes() for gpu in gpus]
    return (torch.get_rng_state().numpy().tobytes(), words[0], words[624], key[0], key[-1], gauss, *own)


def _state(gpus: list[torch.device]) -> list[Any]:
    own = [torch.cuda.get_rng_state(gpu) for gpu in gpus]
    return [torch.get_rng_state(), np.random.get_state(), random.getstate(), *own]


def _set(state: list[Any], gpus: list[torch.device]) -> None:
    cpu, numpy_state, python_state, *of_gpus = state
    torch.set_rng_state(cpu)
    np.random.set_state(numpy_state)
    random.setstate(python_state)
    for gpu, own in zip(gpus, of_gpus, strict=True):
        torch.cuda.set_rng_state(own, gpu)
