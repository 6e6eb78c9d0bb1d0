"""Per-class losses as a sign of noisy clients (FedNoRo, section 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor


def min_max(values: Tensor, when_flat: float) -> Tensor:
    """Scale `values`, (n,) or (n, d), to [0, 1] column by column; columns with max = min become `when_flat`."""
    if not len(values):
        return values
    low, high = values.amin(dim=0), values.amax(dim=0)
    width = high - low
    scaled = (values - low) / width.where(width > 0, torch.ones_like(width))
    return scaled.where(width > 0, torch.full_like(scaled, when_flat))


def class_means(losses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """The mean loss of the samples with each label, (C,) float64; NaN for classes without samples."""
    sums = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, labels, losses.double())
    return sums / torch.bincount(labels, minlength=num_classes)


def fill_missing_classes(losses: Tensor) -> Tensor:
    """Give a client that lacks a class (NaN) the lowest loss any client has there; (K, C) → (K, classes that occur)."""
    missing = losses.isnan()
    occurs = ~missing.all(dim=0)
    lowest = losses.masked_fill(missing, torch.inf).amin(dim=0)
    return losses.where(~missing, lowest)[:, occurs]


def class_loss_indicator(losses: Tensor) -> Tensor:
    """Clients' mean losses per class (K, C), NaN where a client lacks a class, filled and scaled to [0, 1] per class.

    Classes that no client has are dropped; a class in which all clients agree says nothing and becomes 0.
    """
    return min_max(fill_missing_classes(losses), when_flat=0.0)
