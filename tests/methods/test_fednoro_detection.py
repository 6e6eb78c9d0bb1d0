"""Which clients are noisy; `Tn` are the vectors that were computed by hand from the paper."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fnll.methods import fednoro_detection
from fnll.methods.fednoro_detection import INDICATORS, indicator_table, noisy_rows

NAN = float("nan")

MEANS = torch.tensor([[0.2, 1, NAN], [0.4, 2, 0.9], [1.2, NAN, 0.5], [0.7, 1.5, 0.3]], dtype=torch.float64)


def test_indicator_table() -> None:
    filled = indicator_table(MEANS, normalise=False)
    assert filled[0, 2] == 0.3
    assert filled[2, 1] == 1
    table = indicator_table(MEANS, normalise=True)
    expected = torch.tensor([[0, 0, 0], [0.2, 1, 1], [1, 0, 1 / 3], [0.5, 0.5, 0]], dtype=torch.float64)
    assert torch.allclose(table, expected)
    assert table.sum(1).tolist() == pytest.approx([0, 2.2, 1.333333, 1], abs=1e-6)


def test_entries_that_say_nothing_are_dropped_or_zero(caplog: pytest.LogCaptureFixture) -> None:
    means = torch.tensor([[1.0, NAN, 5.0], [2.0, NAN, 5.0]])
    assert indicator_table(means, normalise=True).tolist() == [[0, 0], [1, 0]]
    assert [r.message for r in caplog.records] == [
        "FedNoRo's indicator: 1 of 3 entries are known of no client and left out",
        "FedNoRo's indicator: all clients agree in 1 of 2 entries, which become 0",
    ]


def test_infinite_entries_count_as_the_largest_finite_one(caplog: pytest.LogCaptureFixture) -> None:
    means = torch.tensor([[1.0, math.inf], [3.0, math.inf], [math.inf, NAN]])
    assert indicator_table(means, normalise=False).tolist() == [[1, 0], [3, 0], [3, 0]]
    assert len(caplog.records) == 1


def test_indicators_are_larger_for_noisier_samples() -> None:
    logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.1, 0.0]])
    labels = torch.tensor([0, 1, 0])
    loss = INDICATORS["loss"](logits, labels)
    assert loss.tolist() == pytest.approx([math.log1p(math.exp(-4)), 4 + math.log1p(math.exp(-4)), 0.644397], abs=1e-6)
    doubt = INDICATORS["confidence"](logits, labels)
    assert doubt.tolist() == pytest.approx([0.017986, 0.017986, 0.475021], abs=1e-6)
    assert INDICATORS["loss"](torch.full((1, 2), NAN), torch.tensor([0])).tolist() == [math.inf]


def test_lid_indicator_is_fedcorrs() -> None:  # the simplex rows, k' = 3
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
    values = INDICATORS["lid"](probs.log(), torch.zeros(4, dtype=torch.int64))
    assert values.tolist() == pytest.approx([1.519692, 1.768224, 11.66907, 9.924216], rel=1e-5)
    assert INDICATORS["lid"](probs[:2].log(), torch.zeros(2, dtype=torch.int64)).isnan().all()


ONE_CLASS = torch.tensor([[1.0, 0.0], [0.98, 0.01], [0.99, 0.0], [1.0, 0.02]])
ALL_CLASSES = torch.tensor([[0.6, 0.6], [0.61, 0.6], [0.6, 0.59], [0.59, 0.61]])


def test_paper_compares_norms_and_official_compares_sums() -> None:
    """‖(1, 0)‖ > ‖(.6, .6)‖, but 1 < 1.2."""
    table = torch.cat([ONE_CLASS, ALL_CLASSES])
    assert noisy_rows(table, "paper", "full", 0) == {0, 1, 2, 3}
    assert noisy_rows(table, "official", "full", 0) == {4, 5, 6, 7}


def test_the_vote_goes_to_the_most_frequent_set_and_to_the_first_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []

    def answering(answers: list[set[int]]) -> None:
        def fake(table: Tensor, covariance: str, seed: int, order: str) -> frozenset[int]:
            asked.append((seed, order))
            return frozenset(answers[seed])

        monkeypatch.setattr(fednoro_detection, "_high", fake)

    answering([{1}, {2}, {1, 2}, {2}, {3}, {1, 2}, {1, 2}, {4}, {2, 1, 3}])
    assert noisy_rows(ONE_CLASS, "official", "full", 77) == {1, 2}
    assert asked == [(seed, "sum") for seed in range(9)]
    answering([{5}, {2}, {1}, {1}, {2}, {3}, {4}, {6}, {7}])
    assert noisy_rows(ONE_CLASS, "official", "full", 77) == {2}


def test_the_papers_single_mixture_takes_the_seed_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = fednoro_detection.two_component_gmm
    monkeypatch.setattr(
        fednoro_detection, "two_component_gmm", lambda *args, **kw: asked.append(kw) or real(*args, **kw)
    )
    noisy_rows(torch.cat([ONE_CLASS, ALL_CLASSES]), "paper", "diag", 77)
    assert asked == [{"seed": 77, "covariance": "diag", "order": "norm"}]


@pytest.mark.parametrize("component", ["paper", "official"])
@pytest.mark.parametrize("covariance", ["full", "diag"])
@pytest.mark.parametrize(
    "table",
    [torch.zeros(5, 3), torch.full((4, 2), 0.7), torch.ones(1, 3), torch.zeros(4, 0), torch.eye(2), torch.eye(6)],
    ids=["zero", "constant", "one client", "no class", "two clients", "more classes than clients can tell"],
)
def test_a_mixture_never_fails(table: Tensor, component: Any, covariance: Any) -> None:
    found = noisy_rows(table, component, covariance, 0)
    assert found < set(range(len(table)))  # never everybody
    if len(table) == 1 or not (table != table[0]).any():
        assert not found
