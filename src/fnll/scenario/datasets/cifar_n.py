"""CIFAR-10N and CIFAR-100N: the labels that people gave to CIFAR's training images (Wei et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Unpack
from zipfile import BadZipFile

import numpy as np
import torch
from torchvision.datasets.utils import download_url

from fnll.errors import UserError
from fnll.scenario.datasets.cifar import HUNDRED, TEN, CifarKind, Form, load
from fnll.scenario.datasets.download import obtain
from fnll.scenario.datasets.options import Options, Root, Shared
from fnll.scenario.datasets.sources import Folder
from fnll.scenario.scenario import Dataset
from fnll.settings import checked

INTEGERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
RECONSTRUCT: Any = np.zeros(0).__reduce__()[0]  # what numpy's own pickles call to make an array
ARRAYS: list[Any] = [  # all that unpickling may use: the parts of an array of integers
    np.ndarray,
    np.dtype,
    *(type(np.dtype(code)) for code in INTEGERS),
    (RECONSTRUCT, "numpy._core.multiarray._reconstruct"),
    (RECONSTRUCT, "numpy.core.multiarray._reconstruct"),  # as numpy 1 called it when the files were published
]

HOME = "https://github.com/UCSC-REAL/cifar-10-100n"


@dataclass(frozen=True)
class HumanLabels:
    """One of the two sets of human labels."""

    name: str
    title: str
    kind: CifarKind
    file: str  # as published
    label_sets: Mapping[str, str]  # our names of the label sets, and the published ones
    others: tuple[str, ...] = ()  # file names under which the labels are passed on as plain arrays


TEN_N = HumanLabels(
    "cifar10n",
    "CIFAR-10N",
    TEN,
    "CIFAR-10_human.pt",
    {
        "aggre": "aggre_label",
        "random1": "random_label1",
        "random2": "random_label2",
        "random3": "random_label3",
        "worse": "worse_label",
    },
    ("CIFAR-10_human.npz", "cifar10n-human-labels.npz"),
)
HUNDRED_N = HumanLabels(
    "cifar100n", "CIFAR-100N", HUNDRED, "CIFAR-100_human.pt", {"noisy": "noisy_label"}, ("CIFAR-100_human.npz",)
)


@checked("dataset")
def cifar10n(*, root: Root, download: bool, images: Form, labels: str | None, **options: Unpack[Shared]) -> Dataset:
    """CIFAR-10 with five sets of human labels as annotations: aggre, random1, random2, random3 and worse."""
    chosen = Options(**options)
    return chosen.apply(_load(TEN_N, root, download, images, labels))


@checked("dataset")
def cifar100n(*, root: Root, download: bool, images: Form, labels: str | None, **options: Unpack[Shared]) -> Dataset:
    """CIFAR-100 with one set of human labels as annotation: noisy."""
    chosen = Options(**options)
    return chosen.apply(_load(HUNDRED_N, root, download, images, labels))


def _load(what: HumanLabels, root: str, download: bool, images: Form, labels: str | None) -> Dataset:
    """CIFAR in its published order, whatever the images come from: that is the order of the annotations."""
    path = _label_file(what, root, download, labels)
    published = read_labels(path, what)
    dataset = load(what.kind, root, download=download, images=images)
    clean = _checked(published, "clean_label", path, dataset)
    if images == "folder":
        dataset = _in_published_order(dataset, clean, path)
    wrong = np.flatnonzero(dataset.labels.numpy() != clean)
    if len(wrong):
        raise UserError(
            f"{what.title}: clean_label in {path} disagrees with the labels of {dataset.name} at {len(wrong)} of "
            f"{len(clean)} images, first at position {wrong[0]}; the annotations belong to other images"
        )
    annotations = {
        name: torch.from_numpy(_checked(published, key, path, dataset)) for name, key in what.label_sets.items()
    }
    name = what.name if images == "batches" else dataset.name.replace(what.kind.title, what.title)
    return replace(dataset, name=name, annotations=annotations)


def _in_published_order(dataset: Dataset, clean: np.ndarray, path: Path) -> Dataset:
    """The k-th file of a class folder is the k-th image of that class in the published order."""
    ours = np.bincount(dataset.labels.numpy(), minlength=dataset.num_classes)
    theirs = np.bincount(clean, minlength=dataset.num_classes)
    if not np.array_equal(ours, theirs):
        c = int(np.flatnonzero(ours != theirs)[0])
        raise UserError(
            f"{dataset.name}: the folder of class {dataset.class_names[c]} holds {ours[c]} training images and {path} "
            f"has {theirs[c]} labels for them; the annotations need the complete training set"
        )
    position = np.empty(len(clean), dtype=np.int64)
    position[np.argsort(clean, kind="stable")] = np.arange(len(clean))
    order = torch.from_numpy(position)
    return replace(dataset, train=dataset.train.select(order), labels=dataset.labels[order], rearranged=None)


def _label_file(what: HumanLabels, root: str, download: bool, labels: str | None) -> Path:
    if labels is not None:
        path = Path(labels).expanduser()
        if not path.is_file():
            raise UserError(f"{what.title}: there is no file {path} (dataset.labels={labels}); {_advice(what)}")
        return path
    place = Path(root).expanduser()
    folder = Folder.at(str(place.parent if place.is_file() else place), what.title, _advice(what))  # beside a zip file
    for name in (what.file, *what.others):
        if folder.has(name):
            return Path(folder.place(name))
    url = f"{HOME}/raw/main/data/{what.file}"
    obtain(folder, [what.file], download=download, fetch=lambda: download_url(url, folder.root, what.file))
    return Path(folder.place(what.file))


def _advice(what: HumanLabels) -> str:
    return (
        f"type dataset.download=true, or fetch {what.file} by hand (folder data of {HOME}) and name it with "
        f"dataset.labels=FILE (.pt as published, or .npz with the same arrays)"
    )


def read_labels(path: Path, what: HumanLabels) -> dict[str, np.ndarray]:
    """The arrays in a label file. A pickled file may hold arrays of integers and nothing else: it cannot run code."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                content: Any = dict(file)
        else:
            with torch.serialization.safe_globals(ARRAYS):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, EOFError, RuntimeError, UnpicklingError, BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{what.title}: {path} is corrupted or not a label file ({reason}); {_advice(what)}") from error
    needed = ("clean_label", *what.label_sets.values())
    absent = [key for key in needed if not isinstance(content, Mapping) or key not in content]
    if absent:
        raise UserError(f"{what.title}: {path} has no {', '.join(absent)}; {_advice(what)}")
    return {key: np.asarray(content[key]) for key in needed}


def _checked(published: Mapping[str, np.ndarray], key: str, path: Path, dataset: Dataset) -> np.ndarray:
    """One label set, after a check of its type, length and range."""
    labels = published[key]
    if labels.dtype.kind not in "iu" or labels.shape != (len(dataset.labels),):
        raise UserError(
            f"{dataset.name}: {key} in {path} must hold {len(dataset.labels)} whole numbers, one per training image; "
            f"it holds {labels.dtype} of shape {labels.shape}"
        )
    labels = labels.astype(np.int64)
    if labels.min() < 0 or labels.max() >= dataset.num_classes:
        raise UserError(
            f"{dataset.name}: {key} in {path} has labels from {labels.min()} to {labels.max()}, and there are "
            f"{dataset.num_classes} classes"
        )
    return labels
