"""DaAgg; `Tn` are the vectors that were computed by hand from the paper."""

import logging
import math

import pytest
import torch

from fnll.errors import UserError
from fnll.methods import fednoro_aggregation
from fnll.methods.fednoro import distance_aware
from fnll.testing import same
from fnll.weights import mean


@pytest.fixture(autouse=True)
def _forget_what_was_said() -> None:
    fednoro_aggregation._say_once.cache_clear()


W1 = {"a": torch.tensor([0.0, 0.0]), "b": torch.tensor(0.0)}
W2 = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor(12.0)}
W3 = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor(0.0)}
SIZES = [100, 200, 100]


@pytest.mark.parametrize(
    ("variant", "noisy", "expected"),
    [
        ("paper", {1, 2}, [0.375697, 0.276422, 0.347881]),
        ("official", {1, 2}, [0.373325, 0.274677, 0.351998]),
        ("paper", {1}, [0.365529, 0.268941, 0.365529]),
        ("official", {1}, [0.365529, 0.268941, 0.365529]),
        ("none", {1, 2}, [0.25, 0.5, 0.25]),
    ],
)
def test_distance_aware(variant: str, noisy: set[int], expected: list[float]) -> None:
    assert distance_aware([W1, W2, W3], SIZES, noisy, variant) == pytest.approx(expected, abs=1e-6)
    flags = [i in noisy for i in range(3)]
    assert distance_aware([W1, W2, W3], SIZES, flags, variant) == distance_aware([W1, W2, W3], SIZES, noisy, variant)


def test_distance_aware_aggregate() -> None:
    result = mean([W1, W2, W3], distance_aware([W1, W2, W3], SIZES, {1, 2}, "official"))
    assert result["a"].tolist() == pytest.approx([0.824031, 1.450706], abs=1e-6)
    assert result["b"].item() == pytest.approx(3.296125, abs=1e-6)


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_the_nearest_clean_model_counts(variant: str) -> None:
    """Clean models at 0 and 10; noisy ones at 1 and 14 are 1 and 4 away from the nearest."""
    models = [{"w": torch.tensor([value])} for value in (0.0, 10.0, 1.0, 14.0)]
    parts = fednoro_aggregation.discounted(models, [1, 2, 1, 1], {2, 3}, variant)
    assert parts == pytest.approx([1, 2, math.exp(-1 / 4), math.exp(-1)])


def test_what_the_two_distances_count() -> None:
    base = {
        "w": torch.zeros(2),
        "bn.running_mean": torch.zeros(1),
        "bn.running_var": torch.zeros(1),
        "bn.num_batches_tracked": torch.tensor(0),
    }
    moved = {
        "w": torch.tensor([3.0, 4.0]),
        "bn.running_mean": torch.tensor([2.0]),
        "bn.running_var": torch.tensor([-1.0]),
        "bn.num_batches_tracked": torch.tensor(1000),
    }
    assert fednoro_aggregation.distance(base, moved, "paper") == pytest.approx(5)
    assert fednoro_aggregation.distance(base, moved, "official") == pytest.approx(5 + 2 + 1)


@pytest.mark.parametrize("noisy", [set(), {0, 1, 2}])
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_without_clean_or_without_noisy_models_it_is_fedavg_bit_for_bit(
    noisy: set[int], variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    parts = fednoro_aggregation.discounted([W1, W2, W3], [3, 7, 11], noisy, variant)
    assert parts == [3.0, 7.0, 11.0]
    assert same(mean([W1, W2, W3], parts), mean([W1, W2, W3], [3, 7, 11]))
    fednoro_aggregation.discounted([W1, W2, W3], [3, 7, 11], noisy, variant)
    assert len([r for r in caplog.records if "averaged as in FedAvg" in r.message]) == 1


def test_equal_models_are_not_weighed_down_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert distance_aware([W2, W2, W2], SIZES, {1}) == [0.25, 0.5, 0.25]
    assert len([r for r in caplog.records if "weighs none" in r.message]) == 1


def test_distance_aware_refuses_nonsense() -> None:
    with pytest.raises(UserError, match="no distance 'ofical'; did you mean official"):
        distance_aware([W1], [1], set(), "ofical")
    with pytest.raises(ValueError, match="position 3"):
        distance_aware([W1, W2, W3], SIZES, {3})
    with pytest.raises(ValueError, match="2 flags"):
        distance_aware([W1, W2, W3], SIZES, [True, False])
    with pytest.raises(ValueError, match="at least one sample"):
        distance_aware([W1], [0], set())
