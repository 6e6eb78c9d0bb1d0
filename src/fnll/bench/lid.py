"""Local intrinsic dimensionality: nearest neighbours alone, against all distances and a full sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from fnll.bench.measure import Stopwatch, Variant, take_turns
from fnll.bench.result import Claim, SuiteResult, faster
from fnll.errors import UserError
from fnll.executors.numerics import limit_threads
from fnll.seeding import torch_rng
from fnll.tools import lid
from fnll.tools.dimension import EPSILON

SAMPLES, CLASSES, NEIGHBOURS = 2500, 100, 20
SAME = 1e-9  # relative difference: rounding of sums in another order


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """Predictions for 2,500 samples and 100 classes, on one thread."""
    if words:
        raise UserError("the suite lid measures one function, which has no settings; leave the overrides out")
    return compare(SAMPLES, CLASSES, repeat)


def compare(samples: int, classes: int, repeat: int) -> SuiteResult:
    """Time our LID and two references that sort everything, and make sure that all give the same."""
    limit_threads(1)
    probs = (3 * torch.randn(samples, classes, generator=torch_rng("bench", "lid"), dtype=torch.float64)).softmax(1)
    found = lid(probs, NEIGHBOURS).numpy()
    for reference in (by_rows, by_cdist):
        np.testing.assert_allclose(found, reference(probs), rtol=SAME)

    def timed(function: Callable[[Tensor], object]) -> Variant:
        def variant(watch: Stopwatch) -> int:
            with watch:
                function(probs)
            return samples

        return variant

    variants = {
        "lid": timed(lambda points: lid(points, NEIGHBOURS)),
        "numpy, full sort": timed(by_rows),
        "scipy's cdist, full sort": timed(by_cdist),
    }
    timings = take_turns(variants, repeat)
    ours, plain, library = timings
    claims = (
        Claim(f"{ours} / {plain}", faster(timings, ours, plain), at_least=4.0),
        Claim(f"{ours} / {library}", faster(timings, ours, library)),
    )
    return SuiteResult("lid", (), timings, claims, {"samples": samples, "classes": classes, "neighbours": NEIGHBOURS})


def by_rows(probs: Tensor) -> np.ndarray:
    """Equation 2 of FedCorr in numpy: differences, squares, sums, a full sort, row by row."""
    points = probs.numpy()
    rows = [np.sort(np.sqrt(np.square(points - point).sum(axis=1)))[1 : NEIGHBOURS + 1] for point in points]
    return estimate(np.stack(rows))


def by_cdist(probs: Tensor) -> np.ndarray:
    """The same with the distances of a compiled library."""
    points = probs.numpy()
    return estimate(np.sort(cdist(points, points), axis=1)[:, 1 : NEIGHBOURS + 1])


def estimate(nearest: np.ndarray) -> np.ndarray:
    """The estimate from distances to the nearest neighbours, ascending."""
    return -nearest.shape[1] / (np.log(nearest / (nearest[:, -1:] + EPSILON)).sum(axis=1) + EPSILON)
