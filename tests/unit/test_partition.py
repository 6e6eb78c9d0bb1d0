"""Partitions: every sample exactly once, sizes and class sets as the parameters say, advice when that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fnll.errors import UserError
from fnll.scenario.dealing import cut, deal, top_up
from fnll.scenario.partition import BernoulliDirichlet, Iid


def assert_partition(parts: list[np.ndarray], n: int, num_clients: int, min_size: int = 1) -> None:
    assert len(parts) == num_clients
    assert min(len(part) for part in parts) >= min_size
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def random_labels(n: int, num_classes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(num_classes, size=n)


PARTITIONS = {
    "iid": lambda min_size: Iid(min_size),
    "bernoulli_dirichlet": lambda min_size: BernoulliDirichlet(0.5, 1.0, min_size),
}


@pytest.mark.parametrize("name", PARTITIONS)
@given(
    n=st.integers(30, 400), num_clients=st.integers(1, 10), num_classes=st.integers(1, 8), seed=st.integers(0, 2**62)
)
@settings(max_examples=25, deadline=None)
def test_uses_every_sample_once_and_leaves_no_client_below_min_size(name, n, num_clients, num_classes, seed):
    labels = random_labels(n, num_classes, seed)
    for min_size in (1, n // num_clients):
        assert_partition(PARTITIONS[name](min_size)(labels, num_clients, seed), n, num_clients, min_size)


@pytest.mark.parametrize("name", PARTITIONS)
def test_another_seed_is_another_partition_and_the_same_seed_is_the_same(name):
    labels = random_labels(500, 5, 0)
    first, again, other = (PARTITIONS[name](1)(labels, 7, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", PARTITIONS)
def test_more_clients_than_samples_is_refused(name):
    with pytest.raises(UserError, match="num_clients=11 is more than the 10 training samples"):
        PARTITIONS[name](1)(random_labels(10, 2, 0), 11, 0)


@pytest.mark.parametrize("name", PARTITIONS)
def test_min_size_that_does_not_fit_is_refused_with_advice(name):
    with pytest.raises(UserError, match=r"type partition\.min_size=10 or fewer, or num_clients=9 or fewer"):
        PARTITIONS[name](11)(random_labels(100, 2, 0), 10, 0)


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(part) for part in Iid(1)(random_labels(103, 3, 0), 10, 0)]
    assert sorted(sizes) == [10] * 7 + [11] * 3


@given(p=st.floats(0.05, 1), alpha=st.floats(0.05, 20), num_clients=st.integers(1, 20), seed=st.integers(0, 2**62))
@settings(max_examples=40, deadline=None)
def test_bernoulli_dirichlet_clients_hold_only_the_classes_of_phi(p, alpha, num_clients, seed):
    labels = random_labels(2000, 6, seed)
    partition = BernoulliDirichlet(p, alpha, 1)
    phi = partition.holders(num_clients, 6, seed)
    assert phi.any(0).all()
    assert phi.any(1).all()
    for k, part in enumerate(partition(labels, num_clients, seed)):
        assert set(labels[part]) <= set(np.flatnonzero(phi[k]))


def test_bernoulli_dirichlet_shares_follow_p_and_alpha():
    labels = np.repeat(np.arange(10), 5000)
    phi = BernoulliDirichlet(0.3, 10.0, 1).holders(2000, 10, 0)
    assert abs(phi.mean() - 0.3 / (1 - 0.7**10)) < 0.02  # given that no client is empty
    even, uneven = (
        np.std([len(part) for part in BernoulliDirichlet(1.0, alpha, 1)(labels, 20, 0)]) for alpha in (1000.0, 0.3)
    )
    assert even < 100 < uneven


def test_bernoulli_dirichlet_ignores_classes_that_do_not_occur():
    labels = np.repeat([3, 90], 50)
    assert_partition(BernoulliDirichlet(0.1, 1.0, 1)(labels, 20, 0), 100, 20)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BernoulliDirichlet(0.0, 1.0, 1), "partition.p must be greater than 0"),
        (lambda: BernoulliDirichlet(1.5, 1.0, 1), r"partition.p must be in \[0, 1\], got 1.5"),
        (lambda: BernoulliDirichlet(0.5, 0.0, 1), "partition.alpha must be greater than 0"),
        (lambda: BernoulliDirichlet(0.5, 1.0, 0), "partition.min_size must be a whole number of at least 1"),
        (lambda: Iid(2.5), "partition.min_size must be a whole number"),
    ],
)
def test_bad_parameters_are_named_by_their_config_key(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_top_up_moves_from_the_largest_client_within_the_allowed_classes():
    counts = np.array([[0, 0], [6, 1], [1, 9]])
    allowed = np.array([[True, False], [True, True], [True, True]])
    # Client 2 is the largest and has one sample of class 0; client 1 gives the second.
    np.testing.assert_array_equal(top_up(counts, allowed, 2), [[2, 0], [5, 1], [0, 9]])
    # Nobody can spare class 0 when it does not exist, so the rule gives way.
    np.testing.assert_array_equal(top_up(np.array([[0, 0], [0, 5]]), allowed[:2], 2), [[0, 2], [0, 3]])


def test_cut_keeps_the_total():
    np.testing.assert_array_equal(cut(np.array([0.5, 0.25, 0.25]), 10), [5, 2, 3])


def test_deal_gives_exactly_the_counts():
    groups = np.array([0, 1, 0, 1, 0, 0])
    counts = np.array([[1, 2], [3, 0]])
    parts = deal(groups, counts, np.random.default_rng(0))
    assert [np.bincount(groups[part], minlength=2).tolist() for part in parts] == counts.tolist()
