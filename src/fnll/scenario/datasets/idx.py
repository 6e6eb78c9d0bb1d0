"""MNIST and Fashion-MNIST, from their IDX files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Unpack

import numpy as np
import torchvision
from torchvision.datasets.mnist import read_image_file, read_label_file

from fnll.errors import UserError
from fnll.images import Transform
from fnll.scenario.datasets.decoding import kept
from fnll.scenario.datasets.download import ELSEWHERE, obtain
from fnll.scenario.datasets.options import Options, Shared
from fnll.scenario.datasets.sources import Folder
from fnll.scenario.scenario import Dataset

GARMENTS = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def mnist(*, root: str, download: bool, **options: Unpack[Shared]) -> Dataset:
    """MNIST: 60,000 training and 10,000 test images of handwritten digits, 28x28 pixels."""
    chosen = Options(**options)
    transform = Transform((0.1307,), (0.3081,))  # FedRN, released code; no augmentation
    return _load("mnist", torchvision.datasets.MNIST, tuple("0123456789"), transform, root, download, chosen)


def fashion_mnist(*, root: str, download: bool, **options: Unpack[Shared]) -> Dataset:
    """Fashion-MNIST: 60,000 training and 10,000 test images of garments, 28x28 pixels."""
    chosen = Options(**options)
    transform = Transform((0.2860,), (0.3530,))  # of the training images; no paper of the three uses this data set
    return _load("fashion_mnist", torchvision.datasets.FashionMNIST, GARMENTS, transform, root, download, chosen)


def _load(
    name: str,
    published: type[torchvision.datasets.MNIST],
    class_names: tuple[str, ...],
    transform: Transform,
    root: str,
    download: bool,
    options: Options,
) -> Dataset:
    title = published.__name__
    advice = (
        f"type dataset.download=true to fetch the files (it also unpacks .gz files that lie there already), or, "
        f"if you have them, {ELSEWHERE}: the files belong in DIR/{title}/raw"
    )
    folder = Folder(str(Path(root).expanduser()), title, advice)
    names = [f"{title}/raw/{os.path.basename(url).removesuffix('.gz')}" for url, _ in published.resources]
    obtain(folder, names, download=download, fetch=lambda: published(folder.root, download=True))

    def build(cache: Path) -> None:
        for part, images, labels in (("train", *names[:2]), ("test", *names[2:])):
            pixels, targets = _read(folder, images), _read(folder, labels)
            if len(pixels) != len(targets):
                raise UserError(
                    f"{title}: {folder.place(images)} holds {len(pixels)} images and {folder.place(labels)} "
                    f"{len(targets)} labels; delete both and {advice}"
                )
            np.save(cache / f"{part}.npy", pixels[:, None])
            np.save(cache / f"{part}_labels.npy", targets.astype(np.int64))

    stored = kept(list(zip(names, folder.stats(names), strict=True)), build)
    dataset = Dataset(
        name=name,
        train=stored.images("train"),
        labels=stored.arrays["train_labels"],
        test=stored.images("test"),
        test_labels=stored.arrays["test_labels"],
        num_classes=10,
        transform=transform,
        class_names=class_names,
    )
    return options.apply(dataset)


def _read(folder: Folder, name: str) -> np.ndarray:
    read = read_image_file if "images" in name else read_label_file
    try:
        return read(folder.place(name)).numpy()
    except (AssertionError, KeyError, ValueError, RuntimeError, TypeError, OSError) as error:
        raise UserError(
            f"{folder.title}: {folder.place(name)} is damaged or no IDX file ({error}); delete it and {folder.advice}"
        ) from error
