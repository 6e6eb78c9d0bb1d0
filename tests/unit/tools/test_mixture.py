"""The guarded two-component mixture."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from fnll.seeding import numpy_rng
from fnll.system.notices import forget
from fnll.tools import mixture, two_component_gmm

TWO_CLUSTERS = np.concatenate([np.linspace(0, 0.1, 20), np.linspace(0.8, 1, 10)])


@pytest.mark.parametrize(("reg_covar", "variances"), [(1e-6, (0.000922, 0.004075)), (5e-4, (0.001421, 0.004574))])
def test_two_clusters(reg_covar: float, variances: tuple[float, float]) -> None:
    fitted = two_component_gmm(TWO_CLUSTERS, seed=0, reg_covar=reg_covar)
    assert fitted.degenerate is None
    assert fitted.means.tolist() == pytest.approx([0.05, 0.9], abs=1e-6)
    assert fitted.weights.tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-4)
    assert fitted.variances.tolist() == pytest.approx(variances, abs=1e-6)
    assert fitted.low.tolist() == [True] * 20 + [False] * 10
    assert (fitted.posterior[:20] > 0.99).all()
    assert (fitted.posterior[20:] < 0.01).all()


def test_the_order_of_values_does_not_choose_the_low_component() -> None:
    order = numpy_rng(3).permutation(len(TWO_CLUSTERS))
    for seed in range(5):
        assert two_component_gmm(TWO_CLUSTERS[order], seed=seed).low.tolist() == (TWO_CLUSTERS[order] < 0.5).tolist()


def test_two_values_are_one_each() -> None:
    fitted = two_component_gmm(torch.tensor([1.0, 0.0]), seed=0)
    assert fitted.low.tolist() == [False, True]
    assert fitted.means.tolist() == pytest.approx([0, 1])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "fewer than two"),
        ([0.3], "fewer than two"),
        ([0.5] * 10, "equal"),
        ([1e6, 1e6 + 1e-5], "equal"),
        ([0.0] * 5, "equal"),
        ([float("nan")] * 3, "no finite"),
        ([float("nan"), 1.0, float("inf")], "equal"),
    ],
)
def test_nothing_to_separate_is_all_low(values: list[float], reason: str) -> None:
    fitted = two_component_gmm(torch.tensor(values), seed=0)
    assert reason in (fitted.degenerate or "")
    assert fitted.low.all()
    assert fitted.posterior.tolist() == [1.0] * len(values)
    assert fitted.weights.tolist() == [1, 0]
    assert fitted.means.shape == fitted.variances.shape == (2,)


def test_an_empty_component_is_all_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "EMPTY", 0.4)  # a third of the values: "empty" for this test
    fitted = two_component_gmm(TWO_CLUSTERS, seed=0)
    assert fitted.degenerate == "one component is empty"
    assert fitted.low.all()


def test_values_that_are_not_finite_join_the_extremes() -> None:
    values = torch.tensor([0.0, 0.1, 0.05, 1.0, 0.9, float("nan"), float("inf"), float("-inf")])
    fitted = two_component_gmm(values, seed=0)
    assert fitted.degenerate is None
    assert fitted.low.tolist() == [True, True, True, False, False, False, False, True]
    same = two_component_gmm(torch.tensor([0.0, 0.1, 0.05, 1.0, 0.9, 1.0, 1.0, 0.0]), seed=0)
    assert torch.equal(fitted.posterior, same.posterior)


def test_vectors_and_the_two_orders() -> None:
    """Means (0, 3) and (2, 2): by sum 3 < 4, by norm 3 > 2.83."""
    noise = 0.01 * numpy_rng(0).standard_normal((40, 2))
    values = np.repeat([[0.0, 3.0], [2.0, 2.0]], 20, axis=0) + noise
    by_sum = two_component_gmm(values, seed=0, covariance="diag", order="sum")
    by_norm = two_component_gmm(values, seed=0, covariance="full", order="norm")
    assert by_sum.low.tolist() == [True] * 20 + [False] * 20
    assert by_norm.low.tolist() == [False] * 20 + [True] * 20
    assert by_sum.means.shape == by_norm.variances.shape == (2, 2)
    torch.testing.assert_close(by_norm.means.flip(0), by_sum.means)
    torch.testing.assert_close(by_norm.variances.flip(0), by_sum.variances)


def test_seeds_address_the_fit() -> None:
    values = numpy_rng(1).standard_normal(50)
    state = np.random.get_state()[1].copy()
    first = two_component_gmm(values, seed=2**62 + 5)
    assert torch.equal(first.posterior, two_component_gmm(values, seed=2**62 + 5).posterior)
    assert (np.random.get_state()[1] == state).all()


def test_each_fallback_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            two_component_gmm([0.5, 0.5], seed=0)  # type: ignore[arg-type]
    assert len(caplog.records) == 1
    assert "everything counts as clean" in caplog.text


def drawn(kind, rng, n):
    return {
        "one hump": lambda: rng.normal(size=n),
        "losses": lambda: rng.exponential(0.2, n),
        "two humps": lambda: np.concatenate([rng.normal(0, 0.1, n), rng.normal(3, 1, n)]),
        "ties": lambda: np.round(rng.exponential(1, n), 1),
        "narrow": lambda: rng.uniform(size=n) * 1e-3,
        "nearly two values": lambda: (rng.uniform(size=n) < 0.3) + 1e-9 * rng.normal(size=n),
        "outlier": lambda: np.append(rng.normal(0, 1e-3, n), 1e6),
    }[kind]()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("reg_covar", [1e-6, 5e-4, 0.0])
@pytest.mark.parametrize("kind", ["one hump", "losses", "two humps", "ties", "narrow", "nearly two values", "outlier"])
def test_numbers_are_fitted_as_scikit_learn_fits_them_to_the_bit(kind, reg_covar):
    rng = np.random.default_rng(0)
    compared = 0
    for seed in range(12):
        values = drawn(kind, rng, int(rng.integers(5, 300)))[:, None]
        limits = mixture.Limits(seed, reg_covar, 1e-3, 100)
        try:
            wanted = mixture._fitted(values, limits, "full")
        except ValueError:
            assert mixture._fitted_numbers(values, limits) is None, "scikit-learn says why"
            continue
        found = mixture._fitted_numbers(values, limits)
        assert found is not None
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))
        compared += 1
    assert compared or reg_covar == 0
