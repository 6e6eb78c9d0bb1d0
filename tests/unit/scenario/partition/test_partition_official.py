"""The released codes' partitions.

The digests were computed outside this repository with transcriptions of the released functions; FedRN's shards with a
stable sort in place of its unstable one.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from fnll.errors import UserError
from fnll.scenario.partition.official import (
    BernoulliDirichletOfficial,
    DirichletOfficial,
    IidOfficial,
    ShardsOfficial,
)

LABELS = np.arange(1003) * 7919 % 10


def digest(parts: list[np.ndarray]) -> str:
    """Of sizes and indices, in order."""
    flat = np.concatenate([[len(part), *part] for part in parts])
    return hashlib.blake2b(flat.astype("<i8").tobytes(), digest_size=8).hexdigest()


@pytest.mark.parametrize(
    ("partition", "first", "expected"),
    [
        (IidOfficial(13), [0, 512, 521, 15], "3051596325f06da4"),
        (BernoulliDirichletOfficial(0.7, 10.0, 13), [512, 129, 382, 774], "4dd9ca0f3f8da944"),
        (ShardsOfficial(2, 1), [152, 789, 659, 392], "782463674ba0d551"),
        (DirichletOfficial(0.5, 10, 1), [566, 236, 379, 564], "1e0c027535e662c7"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_draws_are_those_of_the_released_code(partition, first, expected):
    parts = partition(LABELS, 10, seed=5)
    assert parts[0][:4].tolist() == first
    assert digest(parts) == expected


OFFICIAL = {
    "iid": (IidOfficial, (), 3),
    "bernoulli_dirichlet": (BernoulliDirichletOfficial, (0.7, 10.0), 0),
    "shards": (ShardsOfficial, (2,), 3),
    "dirichlet": (DirichletOfficial, (0.5, 10), 3),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_no_sample_is_used_twice_and_the_dropped_ones_are_counted(name, caplog):
    make, arguments, dropped = OFFICIAL[name]
    parts = make(*arguments, None)(LABELS, 10, 3)
    used = np.concatenate(parts)
    assert len(parts) == 10
    assert len(used) == len(set(used.tolist())) == 1003 - dropped
    assert (f"leaves out {dropped} of 1003 samples" in caplog.text) == bool(dropped)


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_seed_is_the_scenarios_unless_the_released_codes_is_given(name):
    make, arguments, _ = OFFICIAL[name]
    assert digest(make(*arguments, None)(LABELS, 10, 1)) != digest(make(*arguments, None)(LABELS, 10, 2))
    assert digest(make(*arguments, 7)(LABELS, 10, 1)) == digest(make(*arguments, 7)(LABELS, 10, 2))


def test_fedrn_splits_positions_and_not_classes():
    """The labels may be permuted at will, and the split stays."""
    shuffled = np.random.default_rng(0).permutation(LABELS)
    partition = DirichletOfficial(0.5, 10, 1)
    assert digest(partition(LABELS, 10, 0)) == digest(partition(shuffled, 10, 0))


def test_fedrn_shards_may_cross_a_class_border():
    parts = ShardsOfficial(1, 1)(np.repeat([0, 1], 15), 3, 0)
    assert sorted(len(part) for part in parts) == [10, 10, 10]
    assert max(len(set(np.repeat([0, 1], 15)[part])) for part in parts) == 2


@pytest.mark.parametrize(
    ("partition", "num_clients", "advice"),
    [
        (
            BernoulliDirichletOfficial(0.3, 10.0, 13),
            10,
            "type partition=bernoulli_dirichlet",
        ),  # a class without a holder
        (BernoulliDirichletOfficial(1e-9, 10.0, 13), 10, "type partition=bernoulli_dirichlet"),
        (BernoulliDirichletOfficial(0.7, 1e-300, 13), 10, "type 0.01 or more"),
        (DirichletOfficial(1e-3, 10, 1), 50, "type partition=dirichlet"),
        (ShardsOfficial(200, 1), 10, "type partition.per_client=100 or fewer"),
        (IidOfficial(1), 2000, "type num_clients=1003 or fewer"),
    ],
)
def test_where_the_released_code_fails_or_never_ends_there_is_advice(partition, num_clients, advice):
    with pytest.raises(UserError, match=advice):
        partition(LABELS, num_clients, 0)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True])
def test_a_seed_the_legacy_generator_does_not_take_is_refused(seed):
    with pytest.raises(UserError, match=r"partition\.legacy_seed must be a whole number from 0 to 4294967295, or null"):
        IidOfficial(seed)
