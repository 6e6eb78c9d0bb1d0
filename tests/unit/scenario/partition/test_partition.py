"""Partitions: every sample exactly once, sizes and class sets as the parameters say, advice when that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fnll.errors import UserError
from fnll.scenario.partition.dealing import cut, deal, top_up
from fnll.scenario.partition.partitions import BernoulliDirichlet, Dirichlet, Iid, Quantity, Shards, shards_per_class


def assert_partition(parts: list[np.ndarray], n: int, num_clients: int, min_size: int = 1) -> None:
    assert len(parts) == num_clients
    assert min(len(part) for part in parts) >= min_size
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def random_labels(n: int, num_classes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(num_classes, size=n)


PARTITIONS = {
    "iid": lambda min_size: Iid(min_size),
    "bernoulli_dirichlet": lambda min_size: BernoulliDirichlet(0.5, 1.0, min_size),
    "dirichlet": lambda min_size: Dirichlet(0.5, True, min_size),
    "dirichlet_unbalanced": lambda min_size: Dirichlet(0.5, False, min_size),
    "quantity": lambda min_size: Quantity(0.5, min_size),
    "shards": lambda min_size: Shards(3, min_size),
}


@pytest.mark.parametrize("name", PARTITIONS)
@given(
    n=st.integers(30, 400), num_clients=st.integers(3, 10), num_classes=st.integers(1, 8), seed=st.integers(0, 2**62)
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
    "partition",
    [
        Iid(10),
        BernoulliDirichlet(1e-9, 1e-9, 10),
        BernoulliDirichlet(0.5, 1e-300, 10),
        Dirichlet(1e-9, True, 10),
        Dirichlet(1e-300, False, 10),
        Quantity(1e-9, 10),
        Shards(1, 10),
    ],
    ids=repr,
)
def test_ends_with_a_thousand_clients_and_tiny_concentrations(partition):
    assert_partition(partition(random_labels(20_000, 20, 0), 1000, 0), 20_000, 1000, 10)


def test_dirichlet_skews_labels_and_not_only_sizes():
    """The histogram of a client is far from the global one for small β and close to it for large β."""
    labels = np.repeat(np.arange(10), 1000)

    def distance(beta):
        parts = Dirichlet(beta, True, 10)(labels, 20, 0)
        shares = [np.bincount(labels[part], minlength=10) / len(part) for part in parts]
        return np.mean([abs(share - 0.1).sum() / 2 for share in shares])

    assert distance(1000.0) < 0.05 < 0.3 < distance(0.3)


def test_dirichlet_depends_on_the_labels():
    labels = random_labels(1000, 10, 0)
    shuffled = np.random.default_rng(1).permutation(labels)
    assert not all(
        np.array_equal(a, b)
        for a, b in zip(Dirichlet(0.5, True, 1)(labels, 5, 0), Dirichlet(0.5, True, 1)(shuffled, 5, 0), strict=True)
    )


def test_balanced_dirichlet_stops_giving_to_a_client_with_its_fair_share():
    labels = np.repeat(np.arange(10), 1000)
    for seed in range(5):
        largest, uncapped = (
            max(len(part) for part in Dirichlet(0.1, balanced, 1)(labels, 10, seed)) for balanced in (True, False)
        )
        assert largest < 1000 + 1000  # below its share before the last class it got
        assert largest <= uncapped


def test_quantity_skews_sizes_and_not_labels():
    labels = np.repeat(np.arange(4), 5000)
    parts = Quantity(0.5, 200)(labels, 10, 0)
    sizes = [len(part) for part in parts]
    assert max(sizes) > 5 * min(sizes)
    for part in parts:
        assert abs(np.bincount(labels[part], minlength=4) / len(part) - 0.25).max() < 5 * 0.25 / np.sqrt(len(part) / 3)


@given(
    per_client=st.integers(1, 6),
    num_clients=st.integers(1, 20),
    num_classes=st.integers(1, 10),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_a_client_has_at_most_as_many_classes_as_shards(per_client, num_clients, num_classes, seed):
    labels = np.append(random_labels(700, num_classes, seed), np.arange(num_classes))
    if per_client * num_clients < num_classes:
        with pytest.raises(UserError, match=r"too few for .* classes; type partition\.per_client="):
            Shards(per_client, 1)(labels, num_clients, seed)
    else:
        for part in Shards(per_client, 1)(labels, num_clients, seed):
            assert 1 <= len(set(labels[part])) <= per_client


def test_shards_are_equal_on_cifar_sized_data():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    assert {len(part) for part in Shards(2, 1)(labels, 100, 0)} == {500}
    assert {len(part) for part in Shards(5, 1)(labels, 100, 0)} == {500}


def test_further_shards_go_to_the_class_with_the_largest_ones():
    np.testing.assert_array_equal(shards_per_class(np.array([90, 40, 5]), 6), [3, 2, 1])


def test_more_shards_than_samples_are_refused():
    with pytest.raises(UserError, match=r"makes 120 shards of 100 samples; type partition\.per_client=10 or fewer"):
        Shards(12, 1)(random_labels(100, 2, 0), 10, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BernoulliDirichlet(0.0, 1.0, 1), "partition.p must be greater than 0"),
        (lambda: BernoulliDirichlet(1.5, 1.0, 1), "partition.p must be greater than 0 and at most 1, got 1.5"),
        (lambda: BernoulliDirichlet(0.5, 0.0, 1), "partition.alpha must be greater than 0"),
        (lambda: BernoulliDirichlet(0.5, 1.0, 0), "partition.min_size must be a whole number of at least 1"),
        (lambda: BernoulliDirichlet(0.5, float("inf"), 1), "partition.alpha must be finite"),
        (lambda: Iid(2.5), "partition.min_size must be a whole number"),
        (lambda: Dirichlet(-1.0, True, 1), "partition.beta must be greater than 0"),
        (lambda: Dirichlet(0.5, "yes", 1), "partition.balanced must be true or false, got 'yes'"),
        (lambda: Quantity(0.0, 1), "partition.beta must be greater than 0"),
        (lambda: Shards(0, 1), "partition.per_client must be a whole number of at least 1"),
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
