"""Clothing1M (Xiao et al., CVPR 2015): a million shop images with labels from their surrounding text."""

from __future__ import annotations

from typing import Unpack

import pandas as pd
import torch
from torch import Tensor

from fnll.errors import UserError
from fnll.images import IMAGENET_MEAN, IMAGENET_STD, HorizontalFlip, RandomCrop, Transform
from fnll.scenario.datasets.decoding import Decoder
from fnll.scenario.datasets.label_lists import labelled, lines
from fnll.scenario.datasets.options import Options, Root, Shared
from fnll.scenario.datasets.sources import Folder
from fnll.scenario.datasets.streaming import store
from fnll.scenario.scenario import Dataset
from fnll.settings import checked

CLASSES = (
    "T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker", "Jacket", "Downcoat", "Suit",
    "Shawl", "Dress", "Vest", "Underwear",
)  # fmt: skip

ADVICE = (
    "ask its authors for Clothing1M (github.com/Cysu/noisy_label), unpack images/*.tar inside images/ and put the key "
    "lists beside it, and name the place with dataset.root=DIR"
)


@checked("dataset")
def clothing1m(*, root: Root, streaming: bool, **options: Unpack[Shared]) -> Dataset:
    """Clothing1M as FedCorr uses it: all noisy training images, tested on the 10,526 images of the clean test list.

    The published labels are noisy (about 38 % wrong) and the clean ones of the training images are not known.
    """
    chosen = Options(**options)
    folder = Folder.at(root, "Clothing1M", ADVICE)
    where = "annotations/" if folder.has("annotations/noisy_label_kv.txt") else ""  # both layouts are in use
    lists = [f"{where}{name}.txt" for name in ("noisy_train_key_list", "noisy_label_kv")]
    clean_lists = [f"{where}{name}.txt" for name in ("clean_test_key_list", "clean_label_kv")]
    folder.require([*lists, *clean_lists, "images"])
    names, labels = _split(folder, *lists)
    test_names, test_labels = _split(folder, *clean_lists)
    # FedCorr, released code: Resize((256, 256)), RandomCrop(224), flip; test images Resize((224, 224))
    transform = Transform(IMAGENET_MEAN, IMAGENET_STD, (RandomCrop(0, size=224), HorizontalFlip()), size=224)
    dataset = Dataset(
        name="clothing1m",
        train=store(folder, names, Decoder(resize=(256, 256)), streaming=streaming),
        labels=labels,
        test=store(folder, test_names, Decoder(resize=(224, 224)), streaming=streaming),
        test_labels=test_labels,
        num_classes=len(CLASSES),
        transform=transform,
        native_noise=True,
        class_names=CLASSES,
    )
    return chosen.apply(dataset)


def _split(folder: Folder, keys: str, labels: str) -> tuple[list[str], Tensor]:
    """The images of a key list, with their labels from a list of all labels of that kind."""
    names = lines(folder, keys)
    known = labelled(folder, labels, len(CLASSES))
    found = known[~known.index.duplicated()].reindex(pd.Index(names))
    if found.hasnans:
        without = found[found.isna()].index
        raise UserError(
            f"Clothing1M: {len(without)} images of {folder.place(keys)} have no label in {folder.place(labels)}, the "
            f"first is {without[0]}; {ADVICE}"
        )
    return names, torch.tensor(found.to_numpy("int64"))
