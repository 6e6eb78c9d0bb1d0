"""A federation that already exists: clients, labels as they are, and as much of the truth as somebody knows.

Without a test set, a part of every client's samples is held out, so that numbers are measured on data that nobody
trained on: with reviewed labels where there are some, else with the observed ones, and `Dataset.test_truth` says which.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fnll.errors import UserError
from fnll.images import Images, Transform
from fnll.scenario.scenario import CLEAN, OBSERVED, UNKNOWN, Dataset
from fnll.seeding import numpy_rng

NOBODY = "all"  # the one client of a table that names none


@dataclass(frozen=True)
class Own:
    """What the files say, one entry per sample."""

    name: str
    names: Sequence[str]
    labels: Sequence[str]
    clients: Sequence[str]  # empty: one client
    splits: Sequence[str]  # train, validation or test
    clean: Sequence[str]  # "" where nobody reviewed the label
    trusted: bool  # whether the observed labels are said to be clean


@dataclass(frozen=True)
class Held:
    """What is kept from the clients where the files name no test set."""

    share: float  # of every client's samples
    fold: str | None  # k/K: the k-th of K parts of every client instead
    seed: int


def federation(own: Own, images: Images, transform: Transform, held: Held) -> Dataset:
    """The data set of these files; `images` are all samples, in their order."""
    class_names = in_order([*own.labels, *(label for label in own.clean if label)])
    if len(class_names) < 2:
        raise UserError(f"{own.name}: all labels are {class_names[0]!r}; there is nothing to learn with one class")
    number = {name: i for i, name in enumerate(class_names)}
    labels = np.array([number[label] for label in own.labels])
    clean = np.array([number[label] if label else UNKNOWN for label in own.clean])
    if own.trusted:
        clean = np.where(clean == UNKNOWN, labels, clean)
    split = np.array(own.splits)
    train, test = np.flatnonzero(split != "test"), np.flatnonzero(split == "test")
    if not (split == "train").any():
        raise UserError(f"{own.name}: no sample is left to train on; column split has no row called train")
    client_names = in_order([own.clients[i] for i in train.tolist()]) if own.clients else (NOBODY,)
    place = {name: k for k, name in enumerate(client_names)}
    owners = np.array([place[own.clients[i]] if own.clients else 0 for i in train.tolist()])
    validation = np.flatnonzero(split[train] == "validation")
    if not len(test) or held.fold is not None:
        chosen = held_out(labels[train], owners, clean[train], validation, held)
        test = test if len(test) else train[chosen]
        validation = np.union1d(validation, chosen)
    truth = CLEAN if (clean[test] != UNKNOWN).all() else OBSERVED
    return Dataset(
        name=own.name,
        train=images if len(train) == len(labels) else images.select(_tensor(train)),
        labels=_tensor(labels[train]),
        test=images.select(_tensor(test)),
        test_labels=_tensor(np.where(clean[test] == UNKNOWN, labels[test], clean[test])),
        num_classes=len(class_names),
        transform=transform,
        native_noise=not own.trusted,
        class_names=class_names,
        validation=_tensor(validation) if len(validation) else None,
        owners=_tensor(owners),
        client_names=client_names,
        names=tuple(own.names[i] for i in train.tolist()),
        reviewed=None if own.trusted or (clean[train] == UNKNOWN).all() else _tensor(clean[train]),
        test_truth=truth,
    )


def held_out(labels: np.ndarray, owners: np.ndarray, clean: np.ndarray, taken: np.ndarray, held: Held) -> np.ndarray:
    """Sorted positions to hold out: from every client its share or fold, and every class as evenly as can be.

    Where some labels are reviewed, a share is taken from those alone, and at most half of a client's: the others stay,
    to judge corrections by.
    """
    free = np.ones(len(labels), dtype=bool)
    free[taken] = False
    reviewed = free & (clean != UNKNOWN)
    if held.fold is not None:
        k, parts = _fold(held.fold)
        place = _places(labels, owners, free, held.seed)
        chosen = np.flatnonzero(free & (place % parts == k - 1))
    else:
        some = reviewed if reviewed.any() else free
        size, most = (np.bincount(owners[which], minlength=owners.max() + 1) for which in (free, some))
        count = np.minimum(np.maximum(1, np.round(held.share * size)), most // 2)
        chosen = np.flatnonzero(some & (_places(labels, owners, some, held.seed) < count[owners]))
        if not len(chosen) and some is reviewed:
            return held_out(labels, owners, np.full_like(clean, UNKNOWN), taken, held)
    if not len(chosen) or len(chosen) == free.sum():
        raise UserError(
            "there is no test set, and too few samples to hold some out; add samples to test on (split=test), "
            "or more samples per client"
        )
    return chosen


def _places(labels: np.ndarray, owners: np.ndarray, which: np.ndarray, seed: int) -> np.ndarray:
    """The place of each sample in its client's queue, in which classes take turns as evenly as their sizes allow."""
    place = np.full(len(labels), len(labels))
    for k in np.unique(owners[which]):
        mine = numpy_rng(seed, "held out", int(k)).permutation(np.flatnonzero(which & (owners == k)))
        key = np.empty(len(mine))
        for c in np.unique(labels[mine]):
            of_class = np.flatnonzero(labels[mine] == c)
            key[of_class] = (np.arange(len(of_class)) + 0.5) / len(of_class)
        place[mine[np.argsort(key, kind="stable")]] = np.arange(len(mine))
    return place


def _fold(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", str(text))
    if not found or not 1 <= int(found[1]) <= int(found[2]) or int(found[2]) < 2:
        raise UserError(f"dataset.fold must be null or k/K such as 1/4, the k-th of K parts, got {text!r}")
    return int(found[1]), int(found[2])


def in_order(texts: Sequence[str]) -> tuple[str, ...]:
    """Each text once: whole numbers by size, everything else by alphabet."""
    found = set(texts)
    if all(re.fullmatch(r"[+-]?\d{1,18}", text) for text in found):
        return tuple(sorted(found, key=lambda text: (int(text), text)))
    return tuple(sorted(found))


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
