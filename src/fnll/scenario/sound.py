"""Data that no run can use, told before anything is trained or written."""

from __future__ import annotations

from torch import Tensor

from fnll.errors import require
from fnll.scenario.scenario import Dataset


def require_sound(dataset: Dataset) -> None:
    """Refuse data of one class, without test images or with such of another size, and labels that name no class."""
    name, classes = dataset.name, dataset.num_classes
    require(classes >= 2, f"{name} has {classes} class, and there is nothing to learn with fewer than two; add another")
    require(len(dataset.test_labels) > 0, f"{name} has no test image, so nothing could be evaluated; check its files")
    for part, labels in (("training", dataset.labels), ("test", dataset.test_labels)):
        odd = _outside(labels, classes)
        require(
            odd is None, f"{name} has the {part} label {odd}, and its classes are 0 to {classes - 1}; check its files"
        )
    sizes = [dataset.transform.shape(images.shape) for images in (dataset.train, dataset.test)]
    require(
        sizes[0] == sizes[1],
        f"{name} has training images of shape {sizes[0]} and test images of shape {sizes[1]}; check its files",
    )


def _outside(labels: Tensor, classes: int) -> int | None:
    """The first label that names no class."""
    odd = labels[(labels < 0) | (labels >= classes)]
    return int(odd[0]) if len(odd) else None
