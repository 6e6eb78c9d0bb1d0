"""Noise models: who is corrupted, how much, and to what."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fnll.errors import UserError
from fnll.images import InMemory, Transform
from fnll.scenario.noise import NoNoise, RhoTau
from fnll.scenario.scenario import Dataset

ALPHA = 1e-6  # chance that a right implementation fails one of the binomial bounds


def dataset(n: int, num_classes: int, *, native_noise: bool = False) -> Dataset:
    """Images of one pixel; labels 0, 1, ..., 0, 1, ..."""
    images = InMemory(torch.arange(n).remainder(256).to(torch.uint8).view(n, 1, 1, 1))
    labels = torch.arange(n) % num_classes
    return Dataset(
        "tiny", images, labels, images, labels, num_classes, Transform((0.5,), (0.5,)), native_noise=native_noise
    )


def even_shards(n: int, num_clients: int) -> list[np.ndarray]:
    return np.array_split(np.random.default_rng(0).permutation(n), num_clients)


def assert_binomial(successes: int, n: int, p: float) -> None:
    low, high = binom.interval(1 - ALPHA, n, p)
    assert low <= successes <= high, f"{successes} of {n} at p={p}"


NOISES = {
    "none": NoNoise(),
    "rho_tau": RhoTau(0.6, 0.5, "exact", "all"),
}


@pytest.mark.parametrize("name", NOISES)
@given(seed=st.integers(0, 2**62))
@settings(max_examples=10, deadline=None)
def test_clean_clients_are_untouched_and_labels_stay_in_range(name, seed):
    data, shards = dataset(600, 10), even_shards(600, 12)
    before = data.labels.clone()
    noisy = NOISES[name](data, shards, seed)
    assert noisy.nominal.shape == (12,)
    assert noisy.labels.min() >= 0
    assert noisy.labels.max() < 10
    for level, shard in zip(noisy.nominal, shards, strict=True):
        if level == 0:
            np.testing.assert_array_equal(noisy.labels[shard], data.labels.numpy()[shard])
    torch.testing.assert_close(data.labels, before, rtol=0, atol=0)  # the data set is not written to


@pytest.mark.parametrize("name", [name for name in NOISES if name != "none"])
def test_another_seed_gives_other_labels(name):
    data, shards = dataset(600, 10), even_shards(600, 12)
    first, again, other = (NOISES[name](data, shards, seed).labels for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("name", NOISES)
def test_injected_noise_is_refused_on_labels_that_are_noisy_already(name):
    with pytest.raises(UserError, match="type noise=native"):
        NOISES[name](dataset(60, 10, native_noise=True), even_shards(60, 3), 0)


@pytest.mark.parametrize("count", ["exact", "bernoulli"])
@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_rho_tau_realised_levels_sit_inside_binomial_bounds(count, num_classes):
    data, shards = dataset(40_000, num_classes), even_shards(40_000, 20)
    noisy = RhoTau(0.5, 0.3, count, "all")(data, shards, 3)
    wrong = noisy.labels != data.labels.numpy()
    assert 0 < (noisy.nominal > 0).sum() < 20
    for mu, shard in zip(noisy.nominal, shards, strict=True):
        assert mu == 0 or 0.3 <= mu <= 1
        if count == "exact":
            assert_binomial(wrong[shard].sum(), int(mu * len(shard)), 1 - 1 / num_classes)
        else:
            assert_binomial(wrong[shard].sum(), len(shard), mu * (1 - 1 / num_classes))


def test_rho_tau_counts_of_noisy_clients_are_binomial_in_rho():
    for rho in (0.0, 0.4, 1.0):
        assert_binomial((RhoTau(rho, 0.5, "exact", "all").levels(5000, 0) > 0).sum(), 5000, rho)


@pytest.mark.parametrize(("pool", "reached"), [("all", 100), ("ten", 10)])
def test_rho_tau_noise_on_a_hundred_classes_covers_its_pool(pool, reached):
    data, shards = dataset(20_000, 100), even_shards(20_000, 10)
    noisy = RhoTau(1.0, 0.9, "exact", pool)(data, shards, 0)
    wrong = noisy.labels != data.labels.numpy()
    assert set(noisy.labels[wrong]) == set(range(reached))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RhoTau(1.5, 0.5, "exact", "all"), r"noise.rho must be in \[0, 1\], got 1.5; ρ is the probability"),
        (lambda: RhoTau(0.5, -1, "exact", "all"), r"noise.tau must be in \[0, 1\], got -1"),
        (lambda: RhoTau(0.5, 0.5, "some", "all"), "noise.count must be exact or bernoulli"),
        (lambda: RhoTau(0.5, 0.5, "exact", "some"), "noise.label_pool must be all or ten"),
    ],
)
def test_bad_parameters_are_named_by_their_config_key(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_pool_of_ten_needs_ten_classes():
    with pytest.raises(UserError, match=r"type noise\.label_pool=all"):
        RhoTau(0.5, 0.5, "exact", "ten")(dataset(60, 5), even_shards(60, 3), 0)
