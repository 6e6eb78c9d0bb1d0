"""Tools against label noise that several methods share, in the form of the papers and of the released codes."""

from fnll.noisy.adjustment import kd_ramp, la_kd, log_prior, logit_adjusted
from fnll.noisy.dimension import lid
from fnll.noisy.indicator import class_loss_indicator, class_means, fill_missing_classes, min_max
from fnll.noisy.losses import (
    Mixed,
    double_softmax_cross_entropy,
    evaluating,
    mixed_cross_entropy,
    mixup,
    predict,
    sample_losses,
)
from fnll.noisy.mixture import TwoComponents, two_component_gmm
from fnll.noisy.variant import Variant, require_variant

__all__ = [
    "Mixed",
    "TwoComponents",
    "Variant",
    "class_loss_indicator",
    "class_means",
    "double_softmax_cross_entropy",
    "evaluating",
    "fill_missing_classes",
    "kd_ramp",
    "la_kd",
    "lid",
    "log_prior",
    "logit_adjusted",
    "min_max",
    "mixed_cross_entropy",
    "mixup",
    "predict",
    "require_variant",
    "sample_losses",
    "two_component_gmm",
]
