"""Arithmetic on network states, by hand."""

import pytest
import torch
from torch import nn

from fnll.weights import add, all_finite, join, mean, median, nbytes, part, scale, snapshot, squared_distance, sub


def w(**values):
    return {name: torch.as_tensor(value) for name, value in values.items()}


def test_mean_is_weighted():
    result = mean([w(a=[0.0, 4.0]), w(a=[1.0, 0.0])], [3, 1])
    assert result["a"].tolist() == [0.25, 3.0]


def test_integer_entries_are_averaged_and_truncated():
    result = mean([w(n=10), w(n=21)], [3, 1])
    assert result["n"].item() == 12
    assert result["n"].dtype == torch.int64


def test_equal_integer_entries_stay_what_they_are():
    sizes = [[71, 72, 72], [7, 130, 12, 55, 91], [3, 3, 3], [199, 1, 47, 86]]
    for weights in sizes:
        for count in range(1, 500):
            assert mean([w(n=count)] * len(weights), weights)["n"].item() == count


def test_mean_of_equal_states_is_that_state_bit_for_bit():
    state = {"a": torch.randn(1000, generator=torch.Generator().manual_seed(0))}
    assert torch.equal(mean([state] * 7, [3, 1, 4, 1, 5, 9, 2])["a"], state["a"])


def test_batch_norm_statistics_are_averaged_like_parameters():
    nets = [nn.BatchNorm1d(2) for _ in range(2)]
    nets[0].running_mean.fill_(1.0)
    nets[1].running_mean.fill_(4.0)
    nets[1].num_batches_tracked.fill_(5)
    result = mean([snapshot(net) for net in nets], [2, 1])
    assert result["running_mean"].tolist() == [2.0, 2.0]
    assert result["num_batches_tracked"].item() == 1  # 5/3 truncated


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [2, -1]])
def test_mean_refuses_bad_weights(weights):
    with pytest.raises(ValueError, match="non-negative weights"):
        mean([w(a=1.0), w(a=2.0)], weights)


def test_mean_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no states"):
        mean([])


def test_states_with_other_entries_are_refused():
    with pytest.raises(ValueError, match="different entries: b"):
        mean([w(a=1.0), w(a=1.0, b=2.0)])


def test_median_takes_the_mean_of_the_two_middle_values():
    assert median([w(a=x) for x in (1.0, 100.0, 2.0, 4.0)])["a"].item() == 3.0
    assert median([w(a=x) for x in (5.0, 1.0, 2.0)])["a"].item() == 2.0


def test_add_sub_scale():
    left, right = w(a=[1.0, 2.0], n=7), w(a=[0.5, 4.0], n=2)
    assert add(left, right)["a"].tolist() == [1.5, 6.0]
    assert sub(left, right)["a"].tolist() == [0.5, -2.0]
    assert sub(left, right)["n"].item() == 5
    assert scale(left, 0.5)["a"].tolist() == [0.5, 1.0]
    assert scale(left, 0.5)["n"].item() == 3


def test_squared_distance_counts_floats_only():
    assert squared_distance(w(a=[0.0, 3.0], n=1), w(a=[4.0, 0.0], n=9)).item() == 25.0


def test_snapshot_shares_nothing():
    net = nn.Linear(2, 2)
    state = snapshot(net)
    with torch.no_grad():
        net.weight.add_(1)
    assert not torch.equal(state["weight"], net.weight)
    assert not any(value.requires_grad for value in state.values())


def test_nbytes():
    assert nbytes({"w": w(a=torch.zeros(3)), "mu": 0.5, "ids": [1, 2], "none": None}) == 12 + 8 + 16


def test_all_finite():
    assert all_finite(w(a=[1.0], n=3))
    assert not all_finite(w(a=[float("nan")]))
    assert not all_finite(w(a=[float("inf")], b=[1.0]))


def test_join_and_part():
    both = join(a=w(x=1.0), b=w(x=2.0))
    assert list(both) == ["a.x", "b.x"]
    assert part(both, "b")["x"].item() == 2.0
    with pytest.raises(KeyError, match="no part 'c'"):
        part(both, "c")
