"""mini-WebVision: the first fifty classes of WebVision 1.0's images from Google (Li et al., 2017)."""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from pydantic import Field

from fnll.errors import UserError, require
from fnll.images import IMAGENET_MEAN, IMAGENET_STD, HorizontalFlip, RandomResizedCrop, Transform
from fnll.scenario.datasets.decoding import Decoder
from fnll.scenario.datasets.label_lists import labelled
from fnll.scenario.datasets.options import Options, Root, Shared
from fnll.scenario.datasets.sources import Folder
from fnll.scenario.datasets.streaming import store
from fnll.scenario.scenario import Dataset
from fnll.settings import checked

CLASSES = 50
TRAIN, TEST = "info/train_filelist_google.txt", "info/val_filelist.txt"
TEST_FOLDERS = ("val_images_256", "webvision_val", "val_images", "val")  # as published, and as codes have called it

ADVICE = (
    "fetch WebVision 1.0 (the resized Google images, the validation images and the info files) from its home page, "
    "unpack all in one folder, and name it with dataset.root=DIR"
)


@checked("dataset")
def webvision_mini(
    *,
    root: Root,
    resize: Annotated[int, Field(ge=1, description="images are resized to this shorter side before the crop")],
    crop: Annotated[int, Field(ge=1, description="side of the network's input")],
    streaming: bool,
    **options: Unpack[Shared],
) -> Dataset:
    """mini-WebVision: 65,944 training images with noisy labels, tested on WebVision's 2,500 validation images.

    FedRN's training transform is Resize(33), RandomResizedCrop(32), flip. DEVIATION: images are stored as squares, so
    the random crops come from the central square of what Resize(33) leaves; the test transform is exact.
    """
    chosen = Options(**options)
    require(resize >= crop, f"dataset.resize must be a whole number of at least {crop} (dataset.crop), got {resize}")
    folder = Folder.at(root, "mini-WebVision", ADVICE)
    folder.require([TRAIN, TEST])
    test_folder = next((name for name in TEST_FOLDERS if folder.has(name)), None)
    if test_folder is None:
        looked = ", ".join(folder.place(name) for name in TEST_FOLDERS)
        raise UserError(f"mini-WebVision: there are no validation images, looked for {looked}; {ADVICE}")
    train, test = (labels[labels < CLASSES] for labels in (labelled(folder, TRAIN), labelled(folder, TEST)))
    dataset = Dataset(
        name="webvision_mini",
        train=store(folder, list(train.index), Decoder(resize=resize, crop=resize), streaming=streaming),
        labels=torch.tensor(train.to_numpy("int64")),
        test=store(
            folder,
            [f"{test_folder}/{name}" for name in test.index],
            Decoder(resize=resize, crop=crop),
            streaming=streaming,
        ),
        test_labels=torch.tensor(test.to_numpy("int64")),
        num_classes=CLASSES,
        transform=Transform(
            IMAGENET_MEAN,  # FedRN, history of the released code
            IMAGENET_STD,
            (RandomResizedCrop(crop), HorizontalFlip()),
            size=crop,
        ),
        native_noise=True,
    )
    return chosen.apply(dataset)
