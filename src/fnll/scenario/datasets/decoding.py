"""From image files to stores of pixels: decoded once and memory-mapped, or decoded as they are needed."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from PIL import Image
from torch import Tensor

from fnll.errors import UserError, require
from fnll.images import InMemory, content_digest
from fnll.scenario.datasets.contents import Noted, content_of
from fnll.scenario.datasets.sources import Source
from fnll.system.cache import cached
from fnll.system.files import new_array, write_atomic

log = logging.getLogger(__name__)


class UnequalError(UserError):
    """Images of one data set have different sizes."""


VERSION = 2  # raised when decoding changes, so that no stale cache is read
AT_ONCE = 256  # images that one thread decodes in one go


@dataclass(frozen=True)
class Decoder:
    """Image file to uint8 pixels (channels, height, width); resizes and cuts exactly as torchvision does.

    It goes to Pillow directly because importing torchvision takes seconds.
    """

    resize: int | tuple[int, int] | None = None  # the shorter side, or height and width; None keeps the size
    crop: int | None = None  # side of the central square to cut afterwards
    mode: str = "RGB"

    def __call__(self, source: Source, name: str) -> np.ndarray:
        data = source.read(name)
        try:
            image = _eight_bits(Image.open(io.BytesIO(data))).convert(self.mode)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(
                f"{source.title}: {source.place(name)} is corrupted or not an image ({error}); {source.advice}"
            ) from error
        if self.resize is not None:
            image = image.resize(self._width_and_height(image), Image.Resampling.BILINEAR)
        if self.crop is not None:
            left, top = (round((side - self.crop) / 2) for side in image.size)
            image = image.crop((left, top, left + self.crop, top + self.crop))
        pixels = np.asarray(image)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def _width_and_height(self, image: Image.Image) -> tuple[int, int]:
        if isinstance(self.resize, tuple):
            return self.resize[1], self.resize[0]
        short = min(image.size)
        width, height = (int(self.resize * side / short) if self.resize else side for side in image.size)
        return width, height

    def into(self, out: np.ndarray, source: Source, names: Sequence[str]) -> None:
        """Decode `names` into the rows of `out`; all images must have its shape."""
        for row, name in zip(out, names, strict=True):
            pixels = self(source, name)
            if pixels.shape != row.shape:
                raise UnequalError(
                    f"{source.title}: {source.place(name)} has {_size(pixels)} pixels where others have {_size(row)}; "
                    f"images must have one size (dataset=image_folder resizes them with dataset.size=N)"
                )
            row[...] = pixels


def _eight_bits(image: Image.Image) -> Image.Image:
    """Images of 16 bits, as scanners write them, with their values scaled; Pillow alone would cut them off at 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) // 257).astype(np.uint8))


@cache
def threads(pid: int) -> ThreadPoolExecutor:
    """The decoding threads of process `pid`: threads do not survive a fork, so every process has its own."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())


def decoded(source: Source, names: Sequence[str], decoder: Decoder) -> InMemory:
    """The images as one memory-mapped tensor: decoded by the first caller, read from the cache by the others."""

    def build(folder: Path, source: Source) -> None:
        log.info("%s: decoding %d images once into the cache", source.title, len(names))
        shape = (len(names), *decoder(source, names[0]).shape)
        require_room(folder, shape, source.title)
        pixels = new_array(folder / "pixels.npy", shape, np.uint8)
        cuts = [slice(i, i + AT_ONCE) for i in range(0, len(names), AT_ONCE)]
        pool = threads(os.getpid())
        tasks = [pool.submit(decoder.into, pixels[cut], source, names[cut]) for cut in cuts]
        try:
            for task in tasks:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    return kept_of(source, names, decoder, build).images("pixels")


def require_room(folder: Path, shape: tuple[int, ...], title: str) -> None:
    """Refuse images that cannot fit, before the disk is full: a file that is mapped would fail without a word."""
    needed, free = math.prod(shape), shutil.disk_usage(folder).free
    require(
        needed <= free,
        f"{title}: {shape[0]} images of {shape[3]} x {shape[2]} pixels need {needed / 1e9:.1f} GB of the cache, and "
        f"{free / 1e9:.1f} GB are left there; type a smaller dataset.size, or set FNLL_CACHE to a roomier folder",
    )


@dataclass(frozen=True)
class CachedArrays:
    """Arrays in the cache, memory-mapped."""

    arrays: Mapping[str, Tensor]
    digests: Mapping[str, str]

    def images(self, name: str) -> InMemory:
        return InMemory(self.arrays[name], known_digest=self.digests[name])


def kept_of(
    source: Source, names: Sequence[str], recipe: object, build: Callable[[Path, Source], None]
) -> CachedArrays:
    """The arrays that `build` makes from the content of files; files of the same content are not decoded again."""
    content = content_of(source, names)

    def watched(folder: Path) -> None:
        files = Noted(source)
        build(folder, files)
        files.require(names, content)

    return kept([recipe, content], watched)


def kept(made_from: Sequence[object], build: Callable[[Path], None]) -> CachedArrays:
    """The arrays that `build` writes as .npy files, cached under a hash of `made_from` and checked when read."""
    key = hashlib.blake2b("\0".join(map(repr, (VERSION, *made_from))).encode(), digest_size=12).hexdigest()

    def write(folder: Path) -> None:
        build(folder)
        digests = {file.stem: content_digest(open_memmap(file, mode="r")) for file in folder.glob("*.npy")}
        write_atomic(folder / "digests.json", json.dumps(digests))

    def read(folder: Path) -> CachedArrays:
        digests = json.loads((folder / "digests.json").read_text())
        arrays = {name: open_memmap(folder / f"{name}.npy", mode="c") for name in digests}
        for name, array in arrays.items():
            if content_digest(array) != digests[name]:
                raise ValueError(f"{name}.npy has changed since it was written")
        return CachedArrays({name: torch.from_numpy(array) for name, array in arrays.items()}, digests)

    return cached(f"images/{key}", write, read)


def _size(pixels: np.ndarray) -> str:
    return f"{pixels.shape[2]} x {pixels.shape[1]}"
