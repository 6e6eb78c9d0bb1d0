"""CIFAR-10 and CIFAR-100, from the published batches or from a folder of their images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Unpack

import numpy as np
import torchvision
from pydantic import Field
from torch import Tensor
from torchvision.datasets.utils import check_integrity

from fnll.errors import UserError
from fnll.images import IMAGENET_MEAN, IMAGENET_STD, HorizontalFlip, Images, RandomCrop, Transform
from fnll.scenario.datasets.contents import content_of
from fnll.scenario.datasets.decoding import Decoder, kept
from fnll.scenario.datasets.download import ELSEWHERE, obtain
from fnll.scenario.datasets.image_tree import LAYOUT, tree
from fnll.scenario.datasets.options import Options, Root, Shared
from fnll.scenario.datasets.sources import Folder, source_at
from fnll.scenario.noise.label_maps import CIFAR10, SUPER_CLASSES
from fnll.scenario.scenario import Dataset
from fnll.settings import checked
from fnll.system.files import save_array

Form = Annotated[
    Literal["batches", "folder"],
    Field(title="batches (the published files) or folder (train/<class>/*, test/<class>/*)"),
]
COPIES = {"jpg": "JPEG", "jpeg": "JPEG"}  # other suffixes are said in capitals

AUGMENTATIONS = (RandomCrop(4), HorizontalFlip())  # FedCorr and FedRN, released codes, both data sets


@dataclass(frozen=True)
class CifarKind:
    """One of the two data sets."""

    name: str
    title: str
    published: type[torchvision.datasets.CIFAR10]
    class_names: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def advice(self) -> str:
        return (
            f"type dataset.download=true to fetch {self.published.filename} (about 165 MB), or unpack it there, or, "
            f"if you have the files, {ELSEWHERE}; for images in folders type dataset.images=folder (docs/data.md)"
        )

    @property
    def restored(self) -> str:
        """How to get the published order back from a folder."""
        return (
            f"type dataset={self.name}n dataset.images=folder, whose label file has the published order, or "
            "dataset.images=batches for the published files"
        )


TEN = CifarKind(
    "cifar10",
    "CIFAR-10",
    torchvision.datasets.CIFAR10,
    CIFAR10,
    IMAGENET_MEAN,  # FedCorr and FedRN, released codes: ImageNet's statistics, not CIFAR-10's own
    IMAGENET_STD,
)
HUNDRED = CifarKind(
    "cifar100",
    "CIFAR-100",
    torchvision.datasets.CIFAR100,
    tuple(sorted(name for members in SUPER_CLASSES.values() for name in members)),
    (0.507, 0.487, 0.441),  # FedCorr, released code; FedRN has one digit more: .5071 .4867 .4408 / .2675 .2565 .2761
    (0.267, 0.256, 0.276),
)


@checked("dataset")
def cifar10(*, root: Root, download: bool, images: Form, **options: Unpack[Shared]) -> Dataset:
    """CIFAR-10: 50,000 training and 10,000 test images of 32x32 pixels in ten classes."""
    chosen = Options(**options)
    return chosen.apply(load(TEN, root, download=download, images=images))


@checked("dataset")
def cifar100(*, root: Root, download: bool, images: Form, **options: Unpack[Shared]) -> Dataset:
    """CIFAR-100: 50,000 training and 10,000 test images of 32x32 pixels in a hundred classes."""
    chosen = Options(**options)
    return chosen.apply(load(HUNDRED, root, download=download, images=images))


def load(kind: CifarKind, root: str, *, download: bool, images: Form) -> Dataset:
    """The data set in the order of its source: the published order, or class by class from a folder."""
    if images == "batches":
        name, train, labels, test, test_labels = kind.name, *_batches(kind, root, download)
    else:
        name, train, labels, test, test_labels = _folder(kind, root)
    return Dataset(
        name,
        train,
        labels,
        test,
        test_labels,
        len(kind.class_names),
        Transform(kind.mean, kind.std, AUGMENTATIONS),
        class_names=kind.class_names,
        rearranged=None if images == "batches" else kind.restored,
    )


def _batches(kind: CifarKind, root: str, download: bool) -> tuple[Images, Tensor, Images, Tensor]:
    published = kind.published
    folder = Folder.at(root, kind.title, kind.advice)
    checksums = {f"{published.base_folder}/{name}": md5 for name, md5 in (*published.train_list, *published.test_list)}
    checksums[f"{published.base_folder}/{published.meta['filename']}"] = published.meta["md5"]
    if not download and looks_like_images(folder, kind.class_names) and not folder.has(published.base_folder):
        raise UserError(
            f"{kind.title}: there are no published files in {folder.root}, but train/<class> and test/<class> with "
            "images; type dataset.images=folder"
        )
    obtain(folder, list(checksums), download=download, fetch=lambda: published(folder.root, download=True))

    def build(cache: Path) -> None:
        for name, md5 in checksums.items():  # before anything is unpickled
            if not check_integrity(folder.place(name), md5):
                raise UserError(
                    f"{kind.title}: {folder.place(name)} is damaged (wrong checksum); delete it and {kind.advice}"
                )
        for part in ("train", "test"):
            source = published(folder.root, train=part == "train")
            save_array(cache / f"{part}.npy", source.data.transpose(0, 3, 1, 2))
            save_array(cache / f"{part}_labels.npy", np.array(source.targets, dtype=np.int64))

    stored = kept(["cifar", content_of(folder, list(checksums))], build)
    labels, test_labels = stored.arrays["train_labels"], stored.arrays["test_labels"]
    return stored.images("train"), labels, stored.images("test"), test_labels


def looks_like_images(folder: Folder, class_names: tuple[str, ...]) -> bool:
    """Whether a root holds a tree of images, class by class, in place of the published files."""
    return all(set(class_names) <= set(folder.children(part)) for part in ("train", "test"))


def _folder(kind: CifarKind, root: str) -> tuple[str, Images, Tensor, Images, Tensor]:
    found = tree(source_at(root, kind.title, LAYOUT), Decoder(), streaming=False)
    if found.class_names != kind.class_names:
        strange = sorted(set(found.class_names) ^ set(kind.class_names))
        raise UserError(
            f"{kind.title}: the class folders in {root} are not its {len(kind.class_names)} classes (they differ in "
            f"{', '.join(strange[:5])}); type dataset=image_folder for other images"
        )
    if found.train.shape != (3, 32, 32):
        _, height, width = found.train.shape
        raise UserError(
            f"{kind.title}: the images in {root} have {width} x {height} pixels, not 32 x 32; "
            f"type dataset=image_folder for other images"
        )
    name = f"{kind.title} ({COPIES.get(found.suffix, found.suffix.upper())} copy)"
    return name, found.train, found.labels, found.test, found.test_labels
