"""fnll: a benchmark suite for federated learning with noisy labels."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fnll.system import torchvision_compat  # noqa: F401  (before anything that imports torchvision)

try:
    __version__ = version("fnll")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

NUMBERS = 2
"""Raised by every commit that changes results, so that old and new runs never share an identity."""

# What the author of a method imports: `from fnll import FedAvg, Fit, Update`. Late, since torch takes seconds.
HOMES = {
    "Batch": "fnll.types",
    "Classifier": "fnll.local",
    "Client": "fnll.types",
    "Each": "fnll.types",
    "FedAvg": "fnll.methods.fedavg",
    "Federation": "fnll.federation",
    "Fit": "fnll.local",
    "Frozen": "fnll.local",
    "LocalSpec": "fnll.local",
    "Net": "fnll.net",
    "Predict": "fnll.local",
    "Split": "fnll.local",
    "State": "fnll.types",
    "Trained": "fnll.local",
    "Training": "fnll.local",
    "Update": "fnll.types",
    "UserError": "fnll.errors",
    "Weights": "fnll.weights",
}

__all__ = ["NUMBERS", "__version__", *HOMES]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'fnll' has no attribute {name!r}")
    value = getattr(import_module(HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *HOMES])
