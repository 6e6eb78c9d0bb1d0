"""Which label a wrong one becomes under asymmetric noise: an array with the new label of every class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from fnll.errors import UserError
from fnll.scenario.scenario import Dataset

SEMANTIC = {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"}

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

SUPER_CLASSES = {  # of CIFAR-100, whose class indices follow the alphabet
    "aquatic mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit and vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household electrical devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large man-made outdoor things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large natural outdoor scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large omnivores and herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium-sized mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles 1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles 2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}


def pair_flip(dataset: Dataset) -> np.ndarray:
    """y becomes (y - 1) mod C, as in FedRN's released code."""
    return (np.arange(dataset.num_classes) - 1) % dataset.num_classes


def semantic(dataset: Dataset) -> np.ndarray:
    """CIFAR-10 classes that people confuse: truck to automobile, bird to airplane, deer to horse, cat and dog swapped.

    The other five classes keep their labels, so the realised level is about half the nominal one.
    """
    names = _names(dataset, CIFAR10, "semantic", "CIFAR-10")
    return np.array([names.index(SEMANTIC.get(name, name)) for name in names])


def super_class(dataset: Dataset) -> np.ndarray:
    """The next class, in a circle, within the super-class of CIFAR-100."""
    every = sorted(name for members in SUPER_CLASSES.values() for name in members)
    names = _names(dataset, tuple(every), "super_class", "CIFAR-100")
    following = {
        name: after
        for members in SUPER_CLASSES.values()
        for name, after in zip(members, members[1:] + members[:1], strict=True)
    }
    return np.array([names.index(following[name]) for name in names])


def _names(dataset: Dataset, expected: tuple[str, ...], name: str, meant_for: str) -> tuple[str, ...]:
    """The data set's class names, or those of `expected` for a data set that does not name its classes."""
    names = dataset.class_names or expected
    if dataset.num_classes != len(expected) or set(names) != set(expected):
        raise UserError(
            f"noise.map={name} is about {meant_for}'s classes, and {dataset.name} has others; type noise.map=pair_flip"
        )
    return names


MapName = Literal["pair_flip", "semantic", "super_class"]
MAPS: dict[MapName, Callable[[Dataset], np.ndarray]] = {
    "pair_flip": pair_flip,
    "semantic": semantic,
    "super_class": super_class,
}
