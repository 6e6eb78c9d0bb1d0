"""MNIST and Fashion-MNIST, from their IDX files, packed or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import torchvision

from fnll.errors import UserError
from fnll.images import HorizontalFlip, RandomCrop, Transform
from fnll.scenario.datasets.decoding import kept_of
from fnll.scenario.datasets.download import ELSEWHERE, obtain
from fnll.scenario.datasets.options import Options, Root, Shared
from fnll.scenario.datasets.sources import Folder, Source
from fnll.scenario.scenario import Dataset
from fnll.settings import checked
from fnll.system.files import save_array

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@dataclass(frozen=True)
class IdxKind:
    """One of the two data sets."""

    name: str
    published: type[torchvision.datasets.MNIST]
    elsewhere: str  # the folder that Debian's package and others use
    class_names: tuple[str, ...]
    transform: Transform

    @property
    def title(self) -> str:
        return self.published.__name__

    @property
    def folders(self) -> tuple[str, str]:
        return f"{self.title}/raw", self.elsewhere  # torchvision's first

    @property
    def advice(self) -> str:
        return (
            f"type dataset.download=true to fetch the files, or, if you have them, {ELSEWHERE}: the files, packed or "
            f"not, go to DIR/{self.folders[0]} or DIR/{self.folders[1]}"
        )


DIGITS = IdxKind(
    "mnist",
    torchvision.datasets.MNIST,
    "mnist",
    tuple("0123456789"),
    Transform((0.1307,), (0.3081,)),  # FedRN, released code; no augmentation
)
GARMENTS = IdxKind(
    "fashion_mnist",
    torchvision.datasets.FashionMNIST,
    "fashion-mnist",
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    Transform((0.2860,), (0.3530,)),  # of the training images; none of the three papers uses this data set
)


@checked("dataset")
def mnist(*, root: Root, download: bool, **options: Unpack[Shared]) -> Dataset:
    """MNIST: 60,000 training and 10,000 test images of handwritten digits, 28x28 pixels."""
    chosen = Options(**options)
    return chosen.apply(_load(DIGITS, root, download))


@checked("dataset")
def mnist32(*, root: Root, download: bool, **options: Unpack[Shared]) -> Dataset:
    """MNIST as FedFixer trains it: cropped with padding 4 and flipped at 28x28 pixels, then resized to 32x32."""
    chosen = Options(**options)
    dataset = _load(DIGITS, root, download)
    enlarged = replace(dataset.transform, augmentations=(RandomCrop(4), HorizontalFlip()), resize=32)
    return chosen.apply(replace(dataset, name="mnist32", transform=enlarged))


@checked("dataset")
def fashion_mnist(*, root: Root, download: bool, **options: Unpack[Shared]) -> Dataset:
    """Fashion-MNIST: 60,000 training and 10,000 test images of garments, 28x28 pixels."""
    chosen = Options(**options)
    return chosen.apply(_load(GARMENTS, root, download))


def _load(kind: IdxKind, root: str, download: bool) -> Dataset:
    folder = Folder.at(root, kind.title, kind.advice)
    found = {file: _find(kind, folder, file) for files in FILES.values() for file in files}
    if any(name is None for name in found.values()):
        wanted = {file: f"{kind.folders[0]}/{file}" for file in found}
        absent = [wanted[file] for file, name in found.items() if name is None]
        obtain(folder, absent, download=download, fetch=lambda: kind.published(folder.root, download=True))
        found = {file: name or wanted[file] for file, name in found.items()}
    names = {file: name for file, name in found.items() if name is not None}

    def build(cache: Path, folder: Source) -> None:
        for part, (images, labels) in FILES.items():
            pixels, targets = read_idx(folder, names[images], 3), read_idx(folder, names[labels], 1)
            if len(pixels) != len(targets):
                raise UserError(
                    f"{kind.title}: {folder.place(names[images])} holds {len(pixels)} images and "
                    f"{folder.place(names[labels])} {len(targets)} labels; delete both and {kind.advice}"
                )
            save_array(cache / f"{part}.npy", pixels[:, None])
            save_array(cache / f"{part}_labels.npy", targets.astype(np.int64))

    stored = kept_of(folder, list(names.values()), "idx", build)
    return Dataset(
        name=kind.name,
        train=stored.images("train"),
        labels=stored.arrays["train_labels"],
        test=stored.images("test"),
        test_labels=stored.arrays["test_labels"],
        num_classes=10,
        transform=kind.transform,
        class_names=kind.class_names,
    )


def _find(kind: IdxKind, folder: Folder, file: str) -> str | None:
    candidates = (f"{place}/{file}{suffix}" for place in kind.folders for suffix in ("", ".gz"))
    return next((name for name in candidates if folder.has(name)), None)


def read_idx(folder: Source, name: str, dimensions: int) -> np.ndarray:
    """An array of bytes: two zeros, type 8, the number of dimensions, their sizes (big-endian), the data."""
    content = folder.read(name)
    try:
        if name.endswith(".gz"):
            content = gzip.decompress(content)
        start = 4 + 4 * dimensions
        shape = struct.unpack(f">{dimensions}I", content[4:start])
        if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) - start != math.prod(shape):
            raise ValueError(f"it does not hold {' x '.join(map(str, shape))} bytes")
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise UserError(
            f"{folder.title}: {folder.place(name)} is corrupted or not an IDX file ({error}); delete it "
            f"and {folder.advice}"
        ) from error
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
