"""Mixtures of many clients in one table: those of `two_component_gmm`, one by one, up to rounding."""

import numpy as np
import pytest
import torch

from fnll.executors import mixtures
from fnll.executors.mixtures import split_together
from fnll.local import Split
from fnll.seeding import numpy_rng
from fnll.tools import two_component_gmm

LIMITS = [
    pytest.param({}, id="scikit-learn's"),
    pytest.param({"reg_covar": 5e-4, "tol": 1e-2}, id="FedRN's"),
    pytest.param({"reg_covar": 5e-4, "tol": 1e-2, "max_iter": 10}, id="DivideMix's"),
    pytest.param({"max_iter": 1}, id="one step"),
]


def losses(seed):
    """Losses of a client as they are: many small ones, and some large ones further off or nearer."""
    rng = numpy_rng(seed, "losses")
    size = int(rng.integers(2, 120))
    clean = int(size * rng.uniform(0, 1))
    high = rng.normal(rng.uniform(0.5, 3), 0.6, size - clean)
    return torch.from_numpy(np.abs(np.concatenate([rng.exponential(0.3, clean), high])))


def alone(request):
    return two_component_gmm(
        request.values, seed=request.seed, reg_covar=request.reg_covar, tol=request.tol, max_iter=request.max_iter
    )


def assert_alike(found, expected):
    for name in ("posterior", "means", "variances", "weights"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
    assert torch.equal(found.low, expected.low)
    assert found.degenerate is None


@pytest.mark.parametrize("limits", LIMITS)
def test_every_mixture_is_that_of_the_client_alone(limits):
    requests = [Split(losses(seed), seed=seed * 10**10, **limits) for seed in range(150)]
    found = split_together(requests)
    for request, mixture in zip(requests, found, strict=True):
        expected = alone(request)
        if expected.degenerate is None:
            assert_alike(mixture, expected)
        else:
            assert mixture is None
    assert sum(mixture is not None for mixture in found) > 140


def test_company_changes_nothing(monkeypatch):
    """Neither the others in the table, nor its padding, nor where one table ends and the next begins."""
    requests = [Split(losses(seed), seed=seed) for seed in range(20)]
    whole = split_together(requests)
    monkeypatch.setattr(mixtures, "AT_ONCE", 1)
    for one, other in zip(whole, split_together(requests), strict=True):
        assert_alike(one, other)


def test_integers_and_single_precision_are_fitted_as_doubles():
    values = [torch.tensor([0, 0, 1, 5, 6, 5]), torch.tensor([0.1, 0.2, 0.15, 3.0, 3.5])]
    for own, mixture in zip(values, split_together([Split(own, seed=1) for own in values]), strict=True):
        assert_alike(mixture, two_component_gmm(own, seed=1))


@pytest.mark.parametrize(
    "values",
    [[], [0.5], [0.3] * 9, [float("nan"), 1.0, 2.0], [float("inf"), 1.0, 2.0], [[0.0, 1.0], [2.0, 3.0]]],
    ids=["none", "one", "equal", "nan", "inf", "vectors"],
)
def test_what_has_no_plain_mixture_is_left_to_the_single_one_and_disturbs_nobody(values):
    good = Split(losses(7), seed=7)
    found = split_together([good, Split(torch.tensor(values), seed=0), good])
    assert found[1] is None
    for mixture in (found[0], found[2]):
        assert_alike(mixture, alone(good))


def test_a_component_without_variance_is_left_to_the_single_one():
    request = Split(torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0]), seed=0, reg_covar=0.0)
    assert split_together([request, request]) == [None, None]
    assert alone(request).degenerate is not None


@pytest.mark.parametrize(
    ("centre", "spread", "limits"),
    [(0.0, 1e-7, {}), (0.0, 1e-6, {"reg_covar": 5e-4, "tol": 1e-2}), (2.3, 1e-5, {"reg_covar": 5e-4, "tol": 1e-2})],
)
def test_components_that_fall_together_are_left_to_the_single_one(centre, spread, limits):
    """Losses of a client that the network knows by heart: which component is the low one is decided by rounding."""
    requests = [
        Split(torch.from_numpy(centre + spread * numpy_rng(seed, "flat").exponential(size=40)), seed=seed, **limits)
        for seed in range(60)
    ]
    found = split_together(requests)
    assert sum(mixture is None for mixture in found) > 30
    for request, mixture in zip(requests, found, strict=True):
        if mixture is not None:
            assert_alike(mixture, alone(request))


def test_no_steps_at_all_are_left_to_the_single_one():
    assert split_together([Split(losses(7), seed=7, max_iter=0)] * 2) == [None, None]
