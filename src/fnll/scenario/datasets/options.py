"""What every data set can be asked for: a part of it, a long tail, a held-out validation split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, TypedDict

import numpy as np
import torch
from pydantic import Field

from fnll.errors import UserError
from fnll.scenario.scenario import Dataset
from fnll.seeding import numpy_rng
from fnll.settings import check_fields

Root = Annotated[str, Field(title="the path of a folder or a zip file", description="as in dataset.root=DIR")]
LARGEST = 8192  # pixels of an image's side: 200 MB in colour, and a typing error beyond
Size = Annotated[
    int, Field(ge=1, le=LARGEST, description="images are resized to size x size; null keeps images of one size")
]
Padding = Annotated[int, Field(ge=0, description="zeros around an image before a random crop; 0 turns it off")]
HeldOut = Annotated[
    float, Field(gt=0, lt=1, description="the part of every client held out where there is no test set")
]
Spread = Annotated[float, Field(gt=0)]  # pixels are divided by it

Subset = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)] | None,
    Field(
        title="null, a count of training samples or a fraction in (0, 1]",
        description="type for example dataset.subset=1000 or dataset.subset=0.1",
    ),
]
Imbalance = Annotated[
    float,
    Field(
        ge=1,
        description="the size of the largest class over that of the smallest, for example dataset.imbalance=100",
    ),
]
Validation = Annotated[float, Field(gt=0, lt=1, description="type for example dataset.validation=0.1")]
Seed = Annotated[int, Field(ge=0, description="it decides which samples subset, imbalance and validation pick")]


class Shared(TypedDict, total=False):
    """The keyword arguments that every loader takes and hands to `Options`."""

    subset: Subset
    imbalance: Imbalance | None
    validation: Validation | None
    seed: Seed


@dataclass(frozen=True)
class Options:
    """Choices about the training set; the test set is never touched, so accuracies stay comparable.

    They apply in this order: long tail, subset (which keeps the tail's shape), validation.
    """

    subset: Subset = None  # how many training samples, or which fraction; class shares are kept
    imbalance: Imbalance | None = None  # ratio r of the largest to the smallest class: n_c = n_max * r^(-c / (C - 1))
    validation: Validation | None = None  # fraction held out from the clients, with its observed labels
    seed: Seed = 0  # which samples these choices pick

    def __post_init__(self) -> None:
        check_fields(self, "dataset")

    def apply(self, dataset: Dataset) -> Dataset:
        """`dataset` with its training set reduced as asked for, in its published order."""
        labels = dataset.labels.numpy()
        keep = np.arange(len(labels))
        if self.imbalance is not None:
            keep = long_tail(labels, dataset.num_classes, self.imbalance, self.seed)
        if self.subset is not None:
            count = self.subset if isinstance(self.subset, int) else max(1, round(self.subset * len(keep)))
            if count > len(keep):
                raise UserError(
                    f"dataset.subset={count} is more than the {len(keep)} training samples of {dataset.name}; "
                    f"type dataset.subset={len(keep)} or fewer, or dataset.subset=null for all"
                )
            keep = keep[stratified(labels[keep], count, self.seed, "subset")]
        if len(keep) < len(labels):
            dataset = _reduced(dataset, torch.from_numpy(keep))
        if self.validation is not None:
            labels = dataset.labels.numpy()
            held_out = stratified(labels, max(1, round(self.validation * len(labels))), self.seed, "validation")
            dataset = replace(dataset, validation=torch.from_numpy(held_out))
        return dataset


def stratified(labels: np.ndarray, count: int, seed: int, purpose: str) -> np.ndarray:
    """Sorted positions of `count` samples, drawn so that every class keeps its share (largest remainders round up)."""
    classes, sizes = np.unique(labels, return_counts=True)
    exact = count * sizes / len(labels)
    quota = np.floor(exact).astype(np.int64)
    most_short = np.argsort(quota - exact, kind="stable")  # the largest remainder first, ties by class
    quota[most_short[: count - quota.sum()]] += 1
    chosen = [
        numpy_rng(seed, purpose, int(c)).permutation(np.flatnonzero(labels == c))[:n]
        for c, n in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(chosen))


def long_tail(labels: np.ndarray, num_classes: int, ratio: float, seed: int) -> np.ndarray:
    """Sorted positions of a long-tailed part: n_c = n_max * ratio^(-c / (C - 1)), at least 1, at most what there is."""
    n_max = np.bincount(labels, minlength=num_classes).max()
    chosen = []
    for c in range(num_classes):
        n = max(1, int(n_max * ratio ** (-c / max(1, num_classes - 1)) + 1e-9))  # exact powers stay whole
        chosen.append(numpy_rng(seed, "imbalance", c).permutation(np.flatnonzero(labels == c))[:n])
    return np.sort(np.concatenate(chosen))


def _reduced(dataset: Dataset, keep: torch.Tensor) -> Dataset:
    held = None if dataset.validation is None else torch.isin(keep, dataset.validation).nonzero().flatten()
    return replace(
        dataset,
        train=dataset.train.select(keep),
        labels=dataset.labels[keep],
        annotations={name: labels[keep] for name, labels in dataset.annotations.items()},
        validation=held,
        owners=None if dataset.owners is None else dataset.owners[keep],
        names=tuple(dataset.names[i] for i in keep.tolist()) if dataset.names else (),
        reviewed=None if dataset.reviewed is None else dataset.reviewed[keep],
    )
