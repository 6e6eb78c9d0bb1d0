"""Images as tensors: where they are kept, and how they become network input.

A data set is one contiguous uint8 tensor (or a streaming reader with the same methods); a client is an index into it.
Augmentation works on whole batches of pixels and draws from a generator that it is given.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Images(Protocol):
    """A read-only store of equally sized images."""

    @property
    def shape(self) -> tuple[int, int, int]: ...  # channels, height, width

    @property
    def digest(self) -> str: ...  # hash of the content, part of a scenario's fingerprint

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> Tensor: ...  # uint8 (n, channels, height, width), a copy

    def prefetch(self, index: Tensor) -> None: ...  # a hint that `take(index)` comes soon; may be ignored

    def select(self, index: Tensor) -> Images: ...  # a store of these images only, in this order


@dataclass(frozen=True)
class InMemory:
    """Images as one contiguous uint8 tensor (n, channels, height, width)."""

    pixels: Tensor
    known_digest: str | None = field(default=None, repr=False)  # by whoever has hashed the pixels already

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise TypeError(f"images are uint8 (n, c, h, w), got {self.pixels.dtype} {tuple(self.pixels.shape)}")

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    @cached_property
    def digest(self) -> str:
        return self.known_digest or content_digest(self.pixels.numpy())

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, index: Tensor) -> Tensor:
        return self.pixels.index_select(0, index)  # whole images at once, which `[index]` does not see

    def prefetch(self, index: Tensor) -> None:
        pass

    def select(self, index: Tensor) -> InMemory:
        return InMemory(self.pixels[index])


def content_digest(array: np.ndarray) -> str:
    """A hash of an array's shape and bytes."""
    array = np.ascontiguousarray(array)
    content = hashlib.blake2b(str(array.shape).encode(), digest_size=16)
    content.update(array.data)
    return content.hexdigest()


class Augmentation(Protocol):
    """A random change of a batch of uint8 images, each image by its own draw."""

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class RandomCrop:
    """torchvision's RandomCrop(size, padding): pad with zeros, cut a square of `size` (as large as stored if None)."""

    padding: int
    size: int | None = None

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        n, _, height, width = pixels.shape
        p = self.padding
        h, w = self.size or height, self.size or width
        windows = F.pad(pixels, (p, p, p, p)).unfold(2, h, 1).unfold(3, w, 1)
        top = torch.randint(0, height + 2 * p - h + 1, (n,), generator=generator)
        left = torch.randint(0, width + 2 * p - w + 1, (n,), generator=generator)
        return picked(windows, top, left)


def picked(windows: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Of each image (n, channels, rows, columns, h, w) its own window, (n, channels, h, w)."""
    if windows.device.type == "cpu":  # numpy copies row by row, torch pixel by pixel, in four times the time
        return torch.from_numpy(windows.numpy()[np.arange(len(windows)), :, top.numpy(), left.numpy()])
    device = windows.device
    return windows[torch.arange(len(windows), device=device), :, top.to(device), left.to(device)]


@dataclass(frozen=True)
class HorizontalFlip:
    """torchvision's RandomHorizontalFlip(p)."""

    p: float = 0.5

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        flip = torch.rand(len(pixels), generator=generator) < self.p
        both = torch.cat([pixels, pixels.flip(3)])  # whole images are picked in a fifth of the time that `where` takes
        return both.index_select(0, (torch.arange(len(pixels)) + len(pixels) * flip).to(pixels.device))


@dataclass(frozen=True)
class RandomResizedCrop:
    """torchvision's RandomResizedCrop(size, scale, ratio): a box of random area and shape, resized to a square.

    Bilinear without antialiasing, so only boxes larger than `size` come out a little sharper than torchvision's.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        boxes = self.boxes(len(pixels), pixels.shape[2], pixels.shape[3], generator).to(pixels.device)
        return resized_crops(pixels, boxes, self.size)

    def boxes(self, n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Boxes (n, 4) as top, left, height, width: the first of ten draws that fits, else the largest central box."""
        u = torch.rand((4, n, 10), generator=generator, dtype=torch.float64)
        low, high = self.scale
        area = height * width * (low + (high - low) * u[0])
        shortest, longest = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = torch.exp(shortest + (longest - shortest) * u[1])
        w, h = torch.round(torch.sqrt(area * ratio)), torch.round(torch.sqrt(area / ratio))
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        drawn = torch.stack([torch.floor(u[2] * (height - h + 1)), torch.floor(u[3] * (width - w + 1)), h, w], dim=2)
        first = fits.to(torch.uint8).argmax(dim=1)
        boxes = drawn[torch.arange(n), first]
        boxes[~fits.any(dim=1)] = torch.tensor(self._central(height, width), dtype=torch.float64)
        return boxes.to(torch.int64)

    def _central(self, height: int, width: int) -> tuple[int, int, int, int]:
        h = min(height, round(width / self.ratio[0]))
        w = min(width, round(height * self.ratio[1]))
        return (height - h) // 2, (width - w) // 2, h, w


def resized_crops(pixels: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Each image's own box (top, left, height, width), resized to `size` x `size` by bilinear interpolation."""

    def resampled(values: Tensor, dim: int, start: Tensor, extent: Tensor) -> Tensor:
        centre = (torch.arange(size, device=values.device) + 0.5) * (extent[:, None] / size) - 0.5
        centre = centre.clamp(min=0.0)
        lower = centre.floor().to(torch.int64)
        weight = (centre - lower).to(torch.float32)
        upper = torch.minimum(lower + 1, extent[:, None] - 1)
        shape = [len(values), 1, 1, 1]
        shape[dim] = size
        wide = list(values.shape)
        wide[dim] = size
        near, far = (values.gather(dim, (start[:, None] + index).view(shape).expand(wide)) for index in (lower, upper))
        return torch.lerp(near, far, weight.view(shape))

    top, left, height, width = boxes.unbind(1)
    rows = resampled(pixels.to(torch.float32), 2, top, height)
    return resampled(rows, 3, left, width).round_().to(torch.uint8)


@dataclass(frozen=True)
class RandomAffine:
    """torchvision's RandomAffine(degrees, translate): rotate about the centre, shift by whole pixels, fill with zeros.

    Nearest neighbour, as torchvision's default.
    """

    degrees: float
    translate: float  # the largest shift, as a fraction of width and of height

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        moves = self.moves(len(pixels), pixels.shape[2], pixels.shape[3], generator)
        parts = zip(pixels.split(64), moves.split(64, dim=1), strict=True)  # bounds the memory of the index maps
        return torch.cat([affine(part, *move) for part, move in parts])

    def moves(self, n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Angles in degrees and shifts right and down in whole pixels, (3, n)."""
        u = torch.rand((3, n), generator=generator) * 2 - 1
        largest = torch.tensor([[self.degrees], [self.translate * width], [self.translate * height]])
        moves = u * largest
        moves[1:].round_()
        return moves


def affine(pixels: Tensor, angle: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Each image rotated clockwise by its own `angle` (degrees), then shifted by (`dx`, `dy`) pixels."""
    n, channels, height, width = pixels.shape
    device = pixels.device
    sin, cos = (f(angle * (math.pi / 180)).to(device)[:, None, None] for f in (torch.sin, torch.cos))
    x = (torch.arange(width, device=device) + 0.5 - width / 2)[None, None, :] - dx.to(device)[:, None, None]
    y = (torch.arange(height, device=device) + 0.5 - height / 2)[None, :, None] - dy.to(device)[:, None, None]
    column = torch.floor(cos * x + sin * y + width / 2).to(torch.int64)
    row = torch.floor(cos * y - sin * x + height / 2).to(torch.int64)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = (row.clamp_(0, height - 1) * width + column.clamp_(0, width - 1)).view(n, 1, -1)
    moved = pixels.flatten(2).gather(2, source.expand(n, channels, -1)).view_as(pixels)
    return moved * inside[:, None]


@dataclass(frozen=True)
class Transform:
    """How stored pixels become network input: augmentations on uint8, then scaling to [0, 1] and normalisation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentations: tuple[Augmentation, ...] = ()
    size: int | None = None  # side of the network's input where stored images are larger: the central square is cut
    resize: int | None = None  # side of the network's input where stored images are smaller: interpolated, at the end

    def shape(self, stored: tuple[int, int, int]) -> tuple[int, int, int]:
        """The shape of network input made from images of shape `stored`."""
        side = self.resize or self.size
        return stored if side is None else (stored[0], side, side)

    def plain(self, pixels: Tensor) -> Tensor:
        """Normalised float images, nothing random."""
        mean = torch.tensor(self.mean, device=pixels.device).view(-1, 1, 1) * 255
        std = torch.tensor(self.std, device=pixels.device).view(-1, 1, 1) * 255
        return self._centre(pixels).to(torch.float32).sub_(mean).div_(std)

    def augmented(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Normalised float images after the augmentations."""
        for augmentation in self.augmentations:
            pixels = augmentation(pixels, generator)
        return self.plain(pixels)

    def _centre(self, pixels: Tensor) -> Tensor:
        if self.resize is not None:
            whole = torch.tensor([[0, 0, *pixels.shape[2:]]], device=pixels.device).expand(len(pixels), 4)
            return resized_crops(pixels, whole, self.resize)
        if self.size is None:
            return pixels
        top, left = (round((side - self.size) / 2) for side in pixels.shape[2:])
        return pixels[:, :, top : top + self.size, left : left + self.size]
