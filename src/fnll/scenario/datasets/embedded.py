"""Data sets that need no file: scikit-learn's digits, and Gaussian clusters drawn on demand."""

from __future__ import annotations

from typing import Annotated, Unpack

import numpy as np
import torch
from pydantic import Field
from sklearn.datasets import load_digits
from torch import Tensor

from fnll.errors import require
from fnll.images import InMemory, Transform
from fnll.scenario.datasets.options import LARGEST, Options, Shared, stratified
from fnll.scenario.scenario import Dataset
from fnll.seeding import numpy_rng
from fnll.settings import checked

DIGITS_TEST = 360  # of 1,797 samples: 20 %
DIGITS_MEAN, DIGITS_STD = (0.3054,), (0.3757,)  # measured on the 1,437 training images, values scaled to [0, 1]

GREY, SIGMA = 127.5, 32.0  # pixel value of the origin and of one standard deviation: four of them reach black and white


@checked("dataset")
def digits(**options: Unpack[Shared]) -> Dataset:
    """The 8x8 handwritten digits that ship with scikit-learn, always split alike: 1,437 to train on, 360 to test on."""
    chosen = Options(**options)
    source = load_digits()
    pixels = np.round(source.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = source.target.astype(np.int64)
    test = np.zeros(len(labels), dtype=bool)
    test[stratified(labels, DIGITS_TEST, 0, "digits")] = True
    dataset = Dataset(
        name="digits",
        train=InMemory(torch.from_numpy(pixels[~test])),
        labels=torch.from_numpy(labels[~test]),
        test=InMemory(torch.from_numpy(pixels[test])),
        test_labels=torch.from_numpy(labels[test]),
        num_classes=10,
        transform=Transform(DIGITS_MEAN, DIGITS_STD),
        class_names=tuple("0123456789"),
    )
    return chosen.apply(dataset)


@checked("dataset")
def synthetic(
    *,
    samples: Annotated[int, Field(ge=1, description="the number of training images, at least one per class")],
    test_samples: Annotated[int, Field(ge=1, description="the number of test images")],
    classes: Annotated[int, Field(ge=2, description="the number of clusters")],
    size: Annotated[int, Field(ge=1, le=LARGEST, description="height and width of an image")],
    channels: Annotated[int, Field(ge=1, description="colour channels of an image")],
    separation: Annotated[
        float, Field(gt=0, description="distance of class means in standard deviations of the noise")
    ],
    **options: Unpack[Shared],
) -> Dataset:
    """Gaussian clusters, one per class, drawn as `channels` x `size` x `size` images around mid-grey.

    Noise has unit variance per pixel and any two class means lie `separation` standard deviations apart (about so when
    there are more classes than pixels), so two classes have a Bayes error of Phi(-separation / 2). Classes are
    balanced. `seed` draws the images as well.
    """
    chosen = Options(**options)
    seed = chosen.seed
    require(
        samples >= classes, f"dataset.samples={samples} is fewer than dataset.classes={classes}: every class needs one"
    )
    means = _means(classes, channels * size * size, seed) * (separation / np.sqrt(2))

    def draw(count: int, part: str) -> tuple[InMemory, Tensor]:
        rng = numpy_rng(seed, "synthetic", part)
        labels = rng.permutation(np.arange(count) % classes)
        points = means[labels] + rng.standard_normal((count, channels * size * size))
        pixels = np.clip(np.round(GREY + SIGMA * points), 0, 255).astype(np.uint8)
        return InMemory(torch.from_numpy(pixels.reshape(count, channels, size, size))), torch.from_numpy(labels)

    train, labels = draw(samples, "train")
    test, test_labels = draw(test_samples, "test")
    transform = Transform((GREY / 255,) * channels, (SIGMA / 255,) * channels)
    dataset = Dataset("synthetic", train, labels, test, test_labels, classes, transform)
    return chosen.apply(dataset)


def _means(classes: int, dimension: int, seed: int) -> np.ndarray:
    """Unit vectors (classes, dimension): orthogonal ones while there is room."""
    vectors = numpy_rng(seed, "synthetic", "means").standard_normal((classes, dimension))
    if classes <= dimension:
        return np.linalg.qr(vectors.T)[0].T
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
