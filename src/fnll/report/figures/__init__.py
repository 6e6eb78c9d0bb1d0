"""Figures, importable one by one. Each returns a matplotlib `Figure`; `save` writes it as PDF, SVG and PNG."""

from functools import partial

from fnll.plotting.style import encode, save
from fnll.report.figures.clients import (
    confusion,
    expertise,
    lid,
    lid_passes,
    noise_estimates,
    noise_levels,
    similarity,
)
from fnll.report.figures.comparison import critical_difference, regime, regime_map
from fnll.report.figures.lines import band, curves, diagnostics, label_quality
from fnll.report.figures.papers import (
    alone_and_inside,
    architectures,
    local_models,
    partitions,
    similarities,
    stages,
    warmups,
)

# The papers' figures by their numbers; FedNoRo's detection table is `fnll.report.detection_table`.
fedcorr_2 = fedcorr_10 = fednoro_3 = partitions
fedcorr_3 = lid
fedcorr_6 = lid_passes
fedcorr_7 = noise_estimates
fedcorr_4 = alone_and_inside
fedcorr_5 = architectures
fedcorr_8 = partial(confusion, first=True)
fedcorr_9 = stages
fednoro_4 = warmups
fedrn_1 = local_models
fedrn_3 = label_quality
fedrn_4 = expertise
fedrn_5 = similarities

__all__ = [
    "alone_and_inside",
    "architectures",
    "band",
    "confusion",
    "critical_difference",
    "curves",
    "diagnostics",
    "encode",
    "expertise",
    "fedcorr_2",
    "fedcorr_3",
    "fedcorr_4",
    "fedcorr_5",
    "fedcorr_6",
    "fedcorr_7",
    "fedcorr_8",
    "fedcorr_9",
    "fedcorr_10",
    "fednoro_3",
    "fednoro_4",
    "fedrn_1",
    "fedrn_3",
    "fedrn_4",
    "fedrn_5",
    "label_quality",
    "lid",
    "lid_passes",
    "local_models",
    "noise_estimates",
    "noise_levels",
    "partitions",
    "regime",
    "regime_map",
    "save",
    "similarities",
    "similarity",
    "stages",
    "warmups",
]
