"""Every data set of the benchmark: plain functions that return a `Dataset`, one per `configs/dataset/*.yaml`.

A loader's module is imported when the loader is asked for: torchvision, pandas and scikit-learn take seconds each.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fnll.scenario.datasets.cifar import cifar10, cifar100
    from fnll.scenario.datasets.cifar_n import cifar10n, cifar100n
    from fnll.scenario.datasets.clothing import clothing1m
    from fnll.scenario.datasets.embedded import digits, synthetic
    from fnll.scenario.datasets.idx import fashion_mnist, mnist, mnist32
    from fnll.scenario.datasets.image_tree import image_folder
    from fnll.scenario.datasets.medical import ich, isic2019
    from fnll.scenario.datasets.own_table import table
    from fnll.scenario.datasets.web import webvision_mini

__all__ = [
    "cifar10",
    "cifar10n",
    "cifar100",
    "cifar100n",
    "clothing1m",
    "digits",
    "fashion_mnist",
    "ich",
    "image_folder",
    "isic2019",
    "mnist",
    "mnist32",
    "synthetic",
    "table",
    "webvision_mini",
]

_HOMES = {
    "cifar": ("cifar10", "cifar100"),
    "cifar_n": ("cifar10n", "cifar100n"),
    "clothing": ("clothing1m",),
    "embedded": ("digits", "synthetic"),
    "image_tree": ("image_folder",),
    "idx": ("mnist", "mnist32", "fashion_mnist"),
    "medical": ("isic2019", "ich"),
    "own_table": ("table",),
    "web": ("webvision_mini",),
}


def __getattr__(name: str) -> Any:
    for home, loaders in _HOMES.items():
        if name in loaders:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
