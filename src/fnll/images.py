"""Images as tensors: where they are kept, and how they become network input.

A data set is one contiguous uint8 tensor (or a streaming reader with the same two methods); a client is an index into
it. Augmentation works on whole batches and draws from a generator that it is given.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Images(Protocol):
    """A read-only store of equally sized images."""

    @property
    def shape(self) -> tuple[int, int, int]: ...  # channels, height, width

    @property
    def digest(self) -> str: ...  # hash of the content, part of a scenario's fingerprint

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> Tensor: ...  # uint8 (n, channels, height, width), a copy

    def select(self, index: Tensor) -> Images: ...  # a store of these images only, in this order


@dataclass(frozen=True)
class InMemory:
    """Images as one contiguous uint8 tensor (n, channels, height, width)."""

    pixels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise TypeError(f"images are uint8 (n, c, h, w), got {self.pixels.dtype} {tuple(self.pixels.shape)}")

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    @cached_property
    def digest(self) -> str:
        pixels = self.pixels.contiguous().numpy()
        content = hashlib.blake2b(str(pixels.shape).encode(), digest_size=16)
        content.update(pixels.data)
        return content.hexdigest()

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, index: Tensor) -> Tensor:
        return self.pixels[index]

    def select(self, index: Tensor) -> InMemory:
        return InMemory(self.pixels[index])


class Augmentation(Protocol):
    """A random change of a batch of uint8 images."""

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class RandomCrop:
    """torchvision's RandomCrop(size, padding) for a whole batch: pad with zeros, cut each image at its own place."""

    padding: int

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        n, _, height, width = pixels.shape
        p = self.padding
        windows = F.pad(pixels, (p, p, p, p)).unfold(2, height, 1).unfold(3, width, 1)
        corner = torch.randint(0, 2 * p + 1, (2, n), generator=generator).to(pixels.device)
        return windows[torch.arange(n, device=pixels.device), :, corner[0], corner[1]]


@dataclass(frozen=True)
class HorizontalFlip:
    """torchvision's RandomHorizontalFlip(p) for a whole batch."""

    p: float = 0.5

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        flip = (torch.rand(len(pixels), generator=generator) < self.p).to(pixels.device)
        return torch.where(flip[:, None, None, None], pixels.flip(3), pixels)


@dataclass(frozen=True)
class Transform:
    """How stored pixels become network input: augmentations on uint8, then scaling to [0, 1] and normalisation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentations: tuple[Augmentation, ...] = ()

    def plain(self, pixels: Tensor) -> Tensor:
        """Normalised float images, nothing random."""
        mean = torch.tensor(self.mean, device=pixels.device).view(-1, 1, 1) * 255
        std = torch.tensor(self.std, device=pixels.device).view(-1, 1, 1) * 255
        return (pixels.to(torch.float32) - mean).div_(std)

    def augmented(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Normalised float images after the augmentations."""
        for augmentation in self.augmentations:
            pixels = augmentation(pixels, generator)
        return self.plain(pixels)
