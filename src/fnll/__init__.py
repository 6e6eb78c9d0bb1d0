"""fnll: a benchmark suite for federated learning with noisy labels."""

from importlib.metadata import PackageNotFoundError, version

from fnll import torchvision_compat  # noqa: F401  (before anything that imports torchvision)

try:
    __version__ = version("fnll")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

NUMBERS = 2
"""Raised by every commit that changes results, so that old and new runs never share an identity."""
