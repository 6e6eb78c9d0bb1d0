"""Any tree of images: `train/<class>/*` and `test/<class>/*`, in a folder or straight from a zip file.

A tree that names clients (`train/<client>/<class>/*`) or has no test set is read by `sites` and split by `own`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Unpack

import torch
from pydantic import Field
from torch import Tensor

from fnll.errors import UserError
from fnll.images import Augmentation, HorizontalFlip, Images, RandomCrop, Transform
from fnll.scenario.datasets.decoding import Decoder
from fnll.scenario.datasets.options import HeldOut, Options, Padding, Root, Shared, Size, Spread
from fnll.scenario.datasets.own import Held, federation
from fnll.scenario.datasets.sites import SUFFIXES, own_tree
from fnll.scenario.datasets.sources import Source, source_at
from fnll.scenario.datasets.streaming import store
from fnll.scenario.scenario import CLEAN, OBSERVED, Dataset
from fnll.settings import checked

LAYOUT = "dataset.root must name a folder (or a zip file) that holds train/<class>/* and test/<class>/*"


@dataclass(frozen=True)
class Tree:
    """What such a tree holds: classes in alphabetical order, and within a class files in the order of their names."""

    train: Images
    labels: Tensor
    test: Images
    test_labels: Tensor
    class_names: tuple[str, ...]
    suffix: str  # of the first training file


@checked("dataset")
def image_folder(
    *,
    root: Root,
    name: str,
    size: Size | None,
    mean: Annotated[Sequence[float], Field(min_length=3, max_length=3, description="of red, green and blue")],
    std: Annotated[Sequence[Spread], Field(min_length=3, max_length=3, description="of red, green and blue")],
    padding: Padding,
    flip: bool,
    streaming: bool,
    clean: bool = True,
    holdout: HeldOut = 0.2,
    **options: Unpack[Shared],
) -> Dataset:
    """A tree of images. Samples are sorted by class, so a partition by position is a partition by class."""
    chosen = Options(**options)
    decoder = Decoder(resize=None if size is None else (size, size))
    source = source_at(root, name, LAYOUT)
    augmentations: list[Augmentation] = []
    if padding:
        augmentations.append(RandomCrop(padding))
    if flip:
        augmentations.append(HorizontalFlip())
    transform = Transform(tuple(mean), tuple(std), tuple(augmentations))
    own = own_tree(source, name, trusted=clean)
    if own is not None:
        images = store(source, list(own.names), decoder, streaming=streaming)
        return chosen.apply(federation(own, images, transform, Held(holdout, None, chosen.seed)))
    found = tree(source, decoder, streaming=streaming)
    dataset = Dataset(
        name=name,
        train=found.train,
        labels=found.labels,
        test=found.test,
        test_labels=found.test_labels,
        num_classes=len(found.class_names),
        transform=transform,
        native_noise=not clean,
        class_names=found.class_names,
        rearranged="type the same partition and noise without _official, and no legacy_seed",
        test_truth=CLEAN if clean else OBSERVED,
    )
    return chosen.apply(dataset)


def tree(source: Source, decoder: Decoder, *, streaming: bool) -> Tree:
    """Read the tree at `source`, which may lie one folder down, as archives often have it."""
    top = _top(source)
    class_names = tuple(_folders(source, f"{top}train"))
    strange = sorted(set(_folders(source, f"{top}test")) - set(class_names))
    if strange:
        raise UserError(
            f"{source.title}: {source.place(top + 'test')} has classes that {source.place(top + 'train')} has not: "
            f"{', '.join(strange[:5])}; {LAYOUT} with the same classes"
        )
    names, labels = _files(source, f"{top}train", class_names)
    test_names, test_labels = _files(source, f"{top}test", class_names)
    empty = sorted(set(range(len(class_names))) - set(labels))
    if empty or not test_names:
        place = f"{top}train/{class_names[empty[0]]}" if empty else f"{top}test"
        raise UserError(f"{source.title}: {source.place(place)} holds no image ({', '.join(SUFFIXES)}); {LAYOUT}")
    return Tree(
        train=store(source, names, decoder, streaming=streaming),
        labels=torch.tensor(labels),
        test=store(source, test_names, decoder, streaming=streaming),
        test_labels=torch.tensor(test_labels),
        class_names=class_names,
        suffix=names[0].rsplit(".", 1)[1].lower(),
    )


def _top(source: Source) -> str:
    """The prefix under which train/ and test/ lie."""
    here = source.children("")
    candidates = ["", *(f"{entry}/" for entry in here)]
    tops = [top for top in candidates if source.children(f"{top}train") and source.children(f"{top}test")]
    if len(tops) != 1 and "" not in tops:
        found = f"train/ and test/ lie in {', '.join(tops)}" if tops else f"found: {', '.join(here[:5]) or 'nothing'}"
        raise UserError(f"{source.title}: no train/ and test/ in {source.place('')} ({found}); {LAYOUT}")
    return tops[0]


def _folders(source: Source, name: str) -> list[str]:
    return [entry for entry in source.children(name) if not entry.lower().endswith(SUFFIXES)]


def _files(source: Source, name: str, class_names: Sequence[str]) -> tuple[list[str], list[int]]:
    names: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        files = [file for file in source.children(f"{name}/{class_name}") if file.lower().endswith(SUFFIXES)]
        names += [f"{name}/{class_name}/{file}" for file in files]
        labels += [label] * len(files)
    return names, labels
