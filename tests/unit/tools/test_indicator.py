"""Per-class loss vectors, filled and scaled."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fnll.seeding import torch_rng
from fnll.tools import class_loss_indicator, class_means, fill_missing_classes, min_max

NAN = float("nan")
LOSSES = torch.tensor([[0.2, 1, NAN], [0.4, 2, 0.9], [1.2, NAN, 0.5], [0.7, 1.5, 0.3]], dtype=torch.float64)


def test_missing_classes_take_the_lowest_loss() -> None:
    filled = fill_missing_classes(LOSSES)
    assert filled[0, 2] == 0.3
    assert filled[2, 1] == 1
    known = ~LOSSES.isnan()
    assert torch.equal(filled[known], LOSSES[known])


def test_indicator() -> None:
    indicator = class_loss_indicator(LOSSES)
    expected = torch.tensor([[0, 0, 0], [0.2, 1, 1], [1, 0, 1 / 3], [0.5, 0.5, 0]], dtype=torch.float64)
    torch.testing.assert_close(indicator, expected)
    assert indicator.sum(1).tolist() == pytest.approx([0, 2.2, 4 / 3, 1])


def test_classes_nobody_has_are_dropped_and_flat_classes_say_nothing() -> None:
    losses = torch.tensor([[NAN, 0.5, 0.1], [NAN, 0.5, 0.3]])
    torch.testing.assert_close(class_loss_indicator(losses), torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    assert class_loss_indicator(torch.full((3, 2), NAN)).shape == (3, 0)


def test_class_means() -> None:
    means = class_means(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 2]), 4)
    assert means[[0, 2]].tolist() == [2, 2.5]
    assert means[[1, 3]].isnan().all()
    assert class_means(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 2).isnan().all()


def test_min_max_of_flat_and_empty_input() -> None:
    assert min_max(torch.tensor([0.6, 0.9, 0.5, 0.8]), 0.5).tolist() == pytest.approx([0.25, 1, 0, 0.75])
    assert min_max(torch.tensor([3.0, 3.0]), 0.5).tolist() == [0.5, 0.5]
    assert min_max(torch.tensor([3.0]), 0.0).tolist() == [0.0]
    assert min_max(torch.zeros(0), 0.5).shape == (0,)
    columns = min_max(torch.tensor([[1.0, 4.0], [3.0, 4.0]]), 0.5)
    assert columns.tolist() == [[0, 0.5], [1, 0.5]]


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(1, 8), classes=st.integers(1, 6), share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_the_indicator_is_always_finite_and_in_range(clients: int, classes: int, share: float, seed: int) -> None:
    generator = torch_rng(seed)
    losses = torch.rand(clients, classes, generator=generator)
    losses[torch.rand(clients, classes, generator=generator) < share] = NAN
    indicator = class_loss_indicator(losses)
    assert len(indicator) == clients
    assert indicator.shape[1] == int((~losses.isnan()).any(0).sum())
    assert ((indicator >= 0) & (indicator <= 1)).all()
