"""Subset, long tail and validation: stratified, addressed by the seed, and never touching the test set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fnll.errors import UserError
from fnll.images import InMemory, Transform
from fnll.scenario.datasets.options import Options, long_tail, stratified
from fnll.scenario.scenario import Dataset

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array)


def dataset(labels: list[int]) -> Dataset:
    """Sample i is an image of one pixel with value i."""
    n = len(labels)
    pixels = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1)
    return Dataset(
        name="toy",
        train=InMemory(pixels),
        labels=torch.tensor(labels),
        test=InMemory(pixels[:2]),
        test_labels=torch.tensor([0, 1]),
        num_classes=max(labels) + 1,
        transform=Transform((0.0,), (1.0,)),
        annotations={"worse": torch.arange(n)},
    )


@given(labels=LABELS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_stratified_keeps_shares(labels, data):
    count = data.draw(st.integers(1, len(labels)))
    chosen = stratified(labels, count, 3, "test")
    assert len(chosen) == len(set(chosen.tolist())) == count
    assert (np.diff(chosen) > 0).all()
    for c in np.unique(labels):
        exact = count * (labels == c).mean()
        assert np.floor(exact) - 1e-9 <= (labels[chosen] == c).sum() <= np.ceil(exact) + 1e-9


def test_stratified_rounds_the_largest_remainders_up():
    labels = np.array([0] * 5 + [1] * 3 + [2] * 2)  # shares of four: 2.0, 1.2, 0.8
    assert np.bincount(labels[stratified(labels, 4, 0, "test")]).tolist() == [2, 1, 1]


def test_stratified_depends_on_seed_and_purpose_only():
    labels = np.zeros(50, dtype=int)
    first = stratified(labels, 10, 0, "subset").tolist()
    assert first == stratified(labels, 10, 0, "subset").tolist()
    assert first != stratified(labels, 10, 1, "subset").tolist()
    assert first != stratified(labels, 10, 0, "validation").tolist()


def test_long_tail_follows_the_formula():
    """n_c = 100 * 100^(-c/4) = 100, 31.6, 10, 3.16, 1."""
    labels = np.repeat(np.arange(5), 100)
    kept = long_tail(labels, 5, 100.0, 0)
    assert np.bincount(labels[kept]).tolist() == [100, 31, 10, 3, 1]


def test_exact_powers_are_not_rounded_down():
    """1000 * 1000^(-1/3) is exactly 100, and 99.99999999999999 in floating point."""
    labels = np.repeat(np.arange(4), 1000)
    assert np.bincount(labels[long_tail(labels, 4, 1000.0, 0)]).tolist() == [1000, 100, 10, 1]


def test_long_tail_takes_what_there_is():
    labels = np.array([0] * 8 + [1] * 2)
    assert np.bincount(labels[long_tail(labels, 2, 2.0, 0)]).tolist() == [8, 2]  # four were wanted
    assert np.bincount(labels[long_tail(labels, 2, 1.0, 0)]).tolist() == [8, 2]
    assert np.bincount(labels[long_tail(labels, 2, 100.0, 0)]).tolist() == [8, 1]  # never an empty class


def test_images_labels_and_annotations_stay_together():
    reduced = Options(subset=6, imbalance=3.0).apply(dataset([0, 1] * 10))
    assert len(reduced.labels) == 6
    kept = reduced.train.take(torch.arange(6)).flatten().long()
    assert torch.equal(reduced.labels, kept % 2)
    assert torch.equal(reduced.annotations["worse"], kept)
    assert len(reduced.test) == 2


def test_a_fraction_of_a_long_tail_keeps_its_shape():
    reduced = Options(subset=0.5, imbalance=4.0).apply(dataset([0] * 16 + [1] * 16 + [2] * 16))
    assert reduced.labels.bincount().tolist() == [8, 4, 2]


def test_no_option_changes_nothing():
    full = dataset([0, 1, 1])
    assert Options().apply(full) is full


def test_subset_of_everything_is_everything():
    full = dataset([0, 1, 1])
    assert Options(subset=3).apply(full).digest == Options(subset=1.0).apply(full).digest == full.digest


def test_validation_is_a_stratified_part_of_what_is_left():
    held = Options(validation=0.25, subset=16).apply(dataset([0] * 20 + [1] * 20)).validation
    assert held is not None
    assert len(held) == 4
    reduced = Options(subset=16).apply(dataset([0] * 20 + [1] * 20))
    assert reduced.labels[held].bincount().tolist() == [2, 2]


def test_the_seed_picks_other_samples():
    full = dataset([0, 1] * 20)
    digests = {Options(subset=10, seed=seed).apply(full).digest for seed in range(3)}
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subset": 0}, "dataset.subset"),
        ({"subset": 1.5}, "dataset.subset=1000"),
        ({"subset": True}, "dataset.subset"),
        ({"subset": "ten"}, "dataset.subset"),
        ({"imbalance": 0.5}, "dataset.imbalance=100"),
        ({"validation": 1.0}, "dataset.validation=0.1"),
        ({"validation": 5}, "dataset.validation"),
        ({"seed": -1}, "dataset.seed"),
    ],
)
def test_impossible_options_are_refused_with_advice(options, message):
    with pytest.raises(UserError, match=message):
        Options(**options)


def test_more_than_there_is_is_refused():
    with pytest.raises(UserError, match=r"dataset\.subset=4 is more than the 3 training samples of toy"):
        Options(subset=4).apply(dataset([0, 1, 1]))


def test_an_empty_class_survives_the_options():
    sparse = replace(dataset([0, 2, 2, 0]), num_classes=4)
    assert Options(imbalance=2.0).apply(sparse).num_classes == 4
