"""Local intrinsic dimensionality, in the paper's form and the released code's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from torch import Tensor

from fnll.errors import UserError
from fnll.seeding import torch_rng
from fnll.tools import dimension, lid

LINE = torch.tensor([[0.0], [1.0], [3.0], [7.0]])


def near(values: Tensor, expected: list[float], rtol: float = 1e-6, atol: float = 1e-6) -> None:
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64), rtol=rtol, atol=atol)


def test_points_on_a_line() -> None:
    near(lid(LINE, k=3), [1.074034, 1.037929, 3.058637, 4.203059])
    near(lid(LINE, k=3).mean(), 2.343415)  # type: ignore[arg-type]
    near(lid(LINE, k=2), [1.820479, 2.885390, 4.932611, 4.932615])
    near(lid(LINE, k=2).mean(), 3.642774)  # type: ignore[arg-type]
    by_hand = 3 / (math.log(7 / 1) + math.log(7 / 3) + math.log(7 / 7))
    assert lid(LINE, k=3)[0].item() == pytest.approx(by_hand, rel=2e-6)


def test_fewer_neighbours_than_k() -> None:
    """The paper's form uses the three neighbours there are; the released code keeps 20 in the numerator."""
    near(lid(LINE), [1.074034, 1.037929, 3.058637, 4.203059])
    near(lid(LINE, variant="official"), [7.160227, 6.919526, 20.390914, 28.020392])


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_both_forms_agree_when_there_are_enough_neighbours(variant: str) -> None:
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
    values = lid(rows, k=3, variant=variant)  # type: ignore[arg-type]
    near(values, [1.519692, 1.768224, 11.66907, 9.924216])
    assert values.mean().item() == pytest.approx(6.2203, abs=1e-6)


def test_duplicates_and_saturation() -> None:
    near(lid(torch.tensor([[0.0], [0.0], [1.0], [2.0]]), k=2), [0, 0, 2000002, 2.885390], atol=1)
    near(lid(torch.ones(4, 3), k=2), [0, 0, 0, 0])
    near(lid(torch.eye(3), k=2), [4.83e6] * 3, rtol=1e-2)
    near(lid(1e-7 * LINE.double(), k=3), [0.549942, 0.514328, 0.633029, 0.888711])


def test_too_few_points() -> None:
    assert lid(torch.rand(0, 3)).shape == (0,)
    assert lid(torch.rand(1, 3)).isnan().all()
    assert lid(torch.rand(1, 3), variant="official").isnan().all()
    assert lid(torch.rand(2, 3)).isnan().all()  # one distance says nothing about dimension
    assert lid(torch.rand(3, 3)).isfinite().all()


def test_saturated_float32_predictions_keep_their_distances() -> None:
    """Nearly one-hot float32 rows: a matrix product would round their distances to 0 and the estimates with them."""
    probs = (torch.eye(10)[torch.arange(200) % 10] * 12 + torch.rand(200, 10, generator=torch_rng(0))).softmax(1)
    assert (lid(probs) > 0).all()


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = torch.rand(57, 4, generator=torch_rng(1)).softmax(1)
    whole = lid(probs, k=5)
    monkeypatch.setattr(dimension, "DISTANCES_AT_ONCE", 3 * 57)
    assert torch.equal(lid(probs, k=5), whole)


def test_gradients_and_inputs_are_left_alone() -> None:
    probs = torch.rand(30, 4, requires_grad=True)
    assert not lid(probs, k=5).requires_grad


def test_bad_settings() -> None:
    with pytest.raises(UserError, match="must be paper or official"):
        lid(LINE, variant="papr")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="at least 2"):
        lid(LINE, k=1)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(3, 40), k=st.integers(2, 25), seed=st.integers(0, 1000))
def test_equals_the_definition(n: int, k: int, seed: int) -> None:
    probs = torch.randn(n, 4, generator=torch_rng(seed)).softmax(1)
    distances = cdist(probs.double().numpy(), probs.double().numpy())
    for i, found in enumerate(lid(probs, k=k).tolist()):
        r = sorted(distances[i].tolist())[1 : min(k, n - 1) + 1]
        expected = -len(r) / (sum(math.log(x / (r[-1] + 1e-6)) for x in r) + 1e-6)
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("scale", [0.01, 3.0, 60.0, 300.0])
def test_neighbours_are_those_of_a_full_search_bit_for_bit(scale):
    """From nearly uniform predictions to saturated ones, where rounded products cannot tell neighbours apart."""
    generator = torch.Generator().manual_seed(1)
    points = (scale * torch.randn(200, 7, generator=generator, dtype=torch.float64)).softmax(1)
    points = torch.cat([points, points[:5]])  # twins
    full = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").sort(dim=1).values
    assert torch.equal(dimension._nearest_distances(points, 20), full[:, 1:21])
