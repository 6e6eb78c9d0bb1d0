"""The two medical data sets of FedNoRo: ISIC 2019 (skin lesions) and RSNA ICH (brain CT slices)."""

from __future__ import annotations

from typing import Annotated, Unpack

import pandas as pd
import torch
from pydantic import Field

from fnll.errors import UserError
from fnll.images import IMAGENET_MEAN, IMAGENET_STD, HorizontalFlip, RandomAffine, Transform
from fnll.scenario.datasets.decoding import Decoder
from fnll.scenario.datasets.label_lists import one_hot
from fnll.scenario.datasets.options import Options, Root, Shared, stratified
from fnll.scenario.datasets.sources import Folder
from fnll.scenario.datasets.streaming import store
from fnll.scenario.scenario import Dataset
from fnll.settings import checked

LESIONS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
HAEMORRHAGES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")

Side = Annotated[int, Field(ge=1, description="images are resized to size x size")]

TEST_SHARE = 0.3  # FedNoRo, section 5.1: "a 7:3 split"

TRANSFORM = Transform(  # FedNoRo, released code, both data sets
    IMAGENET_MEAN, IMAGENET_STD, (RandomAffine(degrees=10, translate=0.02), HorizontalFlip())
)

ISIC_ADVICE = (
    "fetch the training images and their ground truth from challenge.isic-archive.com/data/#2019, unpack both in one "
    "folder, and name it with dataset.root=DIR"
)
ICH_ADVICE = (
    "fetch the RSNA intracranial hemorrhage data from Kaggle, save its slices as PNG files in stage_1_train_images/, "
    "put train_ICH.csv and test_ICH.csv beside it (folder data of github.com/wnn2000/FedNoRo, which also has "
    "ICH_softlabel.csv for noise=h_idn_official), and name the place with dataset.root=DIR"
)


@checked("dataset")
def isic2019(*, root: Root, size: Side, streaming: bool, **options: Unpack[Shared]) -> Dataset:
    """ISIC 2019: 25,331 dermoscopic images of eight diagnoses.

    FedNoRo's random 7:3 split is not published: train.csv and test.csv are used where they exist (columns `image` and
    one per class), otherwise the challenge's ground truth is split 7:3 within every class, always alike.
    """
    chosen = Options(**options)
    folder = Folder.at(root, "ISIC 2019", ISIC_ADVICE)
    if folder.has("train.csv") and folder.has("test.csv"):
        train, test = (one_hot(folder, name, "image", LESIONS) for name in ("train.csv", "test.csv"))
    else:
        train, test = _split(one_hot(folder, "ISIC_2019_Training_GroundTruth.csv", "image", LESIONS))
    images, decoder = "ISIC_2019_Training_Input", Decoder(resize=(size, size))
    return chosen.apply(_dataset("isic2019", folder, images, train, test, LESIONS, decoder, streaming))


@checked("dataset")
def ich(*, root: Root, size: Side | None, streaming: bool, **options: Unpack[Shared]) -> Dataset:
    """RSNA ICH: 67,969 CT slices with one of five kinds of haemorrhage, split 47,578 to 20,391 by FedNoRo's files.

    FedNoRo does not resize: images have the size they were saved with (`size` null).
    """
    chosen = Options(**options)
    folder = Folder.at(root, "RSNA ICH", ICH_ADVICE)
    names = [name if folder.has(name) else name.replace(".csv", "_ICH.csv") for name in ("train.csv", "test.csv")]
    train, test = (one_hot(folder, name, "id", HAEMORRHAGES) for name in names)
    images, decoder = "stage_1_train_images", Decoder(resize=None if size is None else (size, size))
    return chosen.apply(_dataset("ich", folder, images, train, test, HAEMORRHAGES, decoder, streaming))


def _dataset(
    name: str,
    folder: Folder,
    images: str,
    train: pd.Series,
    test: pd.Series,
    class_names: tuple[str, ...],
    decoder: Decoder,
    streaming: bool,
) -> Dataset:
    suffix = _suffix(folder, images, str(train.index[0]))
    stores = [
        store(folder, [f"{images}/{key}{suffix}" for key in part.index], decoder, streaming=streaming)
        for part in (train, test)
    ]
    return Dataset(
        name=name,
        train=stores[0],
        labels=torch.tensor(train.to_numpy("int64")),
        test=stores[1],
        test_labels=torch.tensor(test.to_numpy("int64")),
        num_classes=len(class_names),
        transform=TRANSFORM,
        class_names=class_names,
    )


def _split(labels: pd.Series) -> tuple[pd.Series, pd.Series]:
    held_out = stratified(labels.to_numpy(), round(TEST_SHARE * len(labels)), 0, "isic2019")
    test = labels.iloc[held_out]
    return labels.drop(test.index), test


def _suffix(folder: Folder, images: str, key: str) -> str:
    """How the image files end: the published JPEG, or the PNG that people save."""
    for suffix in (".png", ".jpg"):
        if folder.has(f"{images}/{key}{suffix}"):
            return suffix
    raise UserError(
        f"{folder.title}: there is no {folder.place(f'{images}/{key}')}.png or .jpg, the first image of the training "
        f"table; {folder.advice}"
    )
