"""Tools against label noise that several methods share, in the form of the papers and of the released codes."""

from fnll.tools.adjustment import kd_ramp, la_kd, log_prior, logit_adjusted
from fnll.tools.dimension import lid
from fnll.tools.indicator import class_loss_indicator, class_means, fill_missing_classes, min_max
from fnll.tools.losses import (
    Mixed,
    double_softmax_cross_entropy,
    evaluating,
    generalised_cross_entropy,
    in_order,
    mixed_cross_entropy,
    mixup,
    predict,
    sample_losses,
    symmetric_cross_entropy,
)
from fnll.tools.mixture import TwoComponents, two_component_gmm
from fnll.tools.variant import Variant, require_variant

__all__ = [
    "Mixed",
    "TwoComponents",
    "Variant",
    "class_loss_indicator",
    "class_means",
    "double_softmax_cross_entropy",
    "evaluating",
    "fill_missing_classes",
    "generalised_cross_entropy",
    "in_order",
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
    "symmetric_cross_entropy",
    "two_component_gmm",
]
