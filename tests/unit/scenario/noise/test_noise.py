"""Noise models: who is corrupted, how much, and to what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fnll.errors import UserError
from fnll.images import InMemory, Transform
from fnll.scenario.noise.h_idn import HRandom
from fnll.scenario.noise.h_idn_official import HRandomOfficial
from fnll.scenario.noise.label_maps import SUPER_CLASSES, pair_flip, semantic, super_class
from fnll.scenario.noise.models import Human, Native, NoNoise, Ramp, RhoTau
from fnll.scenario.noise.official import RampOfficial, RhoTauOfficial
from fnll.scenario.scenario import Dataset

ALPHA = 1e-6  # chance that a right implementation fails one of the binomial bounds


def dataset(n: int, num_classes: int, **options: Any) -> Dataset:
    """Images of one pixel; labels 0, 1, ..., 0, 1, ..."""
    images = InMemory(torch.arange(n).remainder(256).to(torch.uint8).view(n, 1, 1, 1))
    labels = torch.arange(n) % num_classes
    return Dataset("tiny", images, labels, images, labels, num_classes, Transform((0.5,), (0.5,)), **options)


def even_shards(n: int, num_clients: int) -> list[np.ndarray]:
    return np.array_split(np.random.default_rng(0).permutation(n), num_clients)


def assert_binomial(successes: int, n: int, p: float) -> None:
    low, high = binom.interval(1 - ALPHA, n, p)
    assert low <= successes <= high, f"{successes} of {n} at p={p}"


NOISES = {
    "none": NoNoise(),
    "rho_tau": RhoTau(0.6, 0.5, "exact", "all"),
    "rho_tau_bernoulli": RhoTau(0.6, 0.5, "bernoulli", "all"),
    "rho_tau_official": RhoTauOfficial(0.6, 0.5, "ten", None),
    "symmetric": Ramp("symmetric", 0.0, 0.8, "pair_flip"),
    "asymmetric": Ramp("asymmetric", 0.0, 0.8, "pair_flip"),
    "mixed": Ramp("mixed", 0.0, 0.8, "pair_flip"),
    "ramp_official": RampOfficial("mixed", 0.0, 0.8, None),
    "h_random": HRandom(0.5, 0.3, 0.5),
    "h_random_official": HRandomOfficial(0.5, 0.3, 0.5, None),
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


def test_the_true_label_is_drawn_again_by_fedcorr_and_never_by_fedrn():
    """All labels are redrawn: with ten classes FedCorr's rule leaves a tenth right by chance, FedRN's none."""
    data, shards = dataset(20_000, 10), even_shards(20_000, 4)
    for noise in (RhoTau(1.0, 1.0, "exact", "all"), RhoTauOfficial(1.0, 1.0, "ten", None)):
        wrong = noise(data, shards, 0).labels != data.labels.numpy()
        assert_binomial(wrong.sum(), 20_000, 0.9)
    for noise in (Ramp("symmetric", 1.0, 1.0, "pair_flip"), RampOfficial("symmetric", 1.0, 1.0, None)):
        assert (noise(data, shards, 0).labels != data.labels.numpy()).all()


@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_a_ramp_reaches_its_end_and_every_client_has_exactly_its_rate(kind, num_classes):
    data, shards = dataset(50_000, num_classes), even_shards(50_000, 101)
    noisy = Ramp(kind, 0.0, 0.8, "pair_flip")(data, shards, 0)
    np.testing.assert_allclose(noisy.nominal, np.arange(101) * 0.008, atol=1e-12)
    wrong = noisy.labels != data.labels.numpy()
    for i, shard in enumerate(shards):
        assert wrong[shard].sum() == len(shard) * i * 8 // 1000
    if kind == "symmetric":
        assert set(noisy.labels[wrong]) == set(range(num_classes))
    else:
        np.testing.assert_array_equal(noisy.labels[wrong], (data.labels.numpy()[wrong] - 1) % num_classes)


def test_symmetric_noise_is_even_over_the_other_classes():
    data, shards = dataset(40_000, 5), even_shards(40_000, 2)
    noisy = Ramp("symmetric", 1.0, 1.0, "pair_flip")(data, shards, 0)
    of_class_zero = noisy.labels[data.labels.numpy() == 0]
    for label in (1, 2, 3, 4):
        assert_binomial((of_class_zero == label).sum(), len(of_class_zero), 0.25)


def test_mixed_noise_is_symmetric_for_the_first_half_and_asymmetric_for_the_rest():
    data, shards = dataset(10_000, 10), even_shards(10_000, 5)
    noisy = Ramp("mixed", 0.2, 0.8, "pair_flip")(data, shards, 0)
    np.testing.assert_allclose(noisy.nominal, [0.2, 0.8, 0.2, 0.5, 0.8])
    step = (data.labels.numpy() - noisy.labels) % 10
    assert {int(i) for shard in shards[2:] for i in step[shard]} == {0, 1}
    assert all(set(step[shard]) == set(range(10)) for shard in shards[:2])


def test_maps():
    ten, hundred = dataset(10, 10), dataset(100, 100)
    assert pair_flip(ten)[[0, 5]].tolist() == [9, 4]
    assert pair_flip(hundred)[0] == 99
    assert semantic(ten).tolist() == [0, 1, 0, 5, 7, 3, 6, 7, 8, 1]
    after = super_class(hundred)
    assert sorted(after) == list(range(100))
    assert after[[4, 30, 55, 72, 95]].tolist() == [30, 55, 72, 95, 4]  # beaver, dolphin, otter, seal, whale: a circle
    assert {len(members) for members in SUPER_CLASSES.values()} == {5}


def test_maps_follow_the_class_names():
    names = ("truck", "automobile", "ship", "horse", "frog", "dog", "deer", "cat", "bird", "airplane")
    assert semantic(dataset(10, 10, class_names=names)).tolist() == [1, 1, 2, 3, 4, 7, 3, 5, 9, 9]


def test_the_semantic_map_leaves_half_of_the_classes_alone():
    data, shards = dataset(10_000, 10), even_shards(10_000, 2)
    noisy = Ramp("asymmetric", 1.0, 1.0, "semantic")(data, shards, 0)
    assert (noisy.labels != data.labels.numpy()).mean() == 0.5


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (dataset(70, 7), "semantic"),
        (dataset(100, 10, class_names=tuple("0123456789")), "semantic"),
        (dataset(100, 10), "super_class"),
    ],
)
def test_a_map_of_other_classes_is_refused(data, name):
    with pytest.raises(UserError, match=f"noise.map={name} is about .* type noise.map=pair_flip"):
        Ramp("asymmetric", 0.0, 0.4, name)(data, even_shards(70, 3), 0)


@pytest.mark.parametrize("noise", [Ramp("symmetric", 0, 1, "pair_flip"), RampOfficial("symmetric", 0, 1, None)])
def test_one_class_leaves_no_other_label(noise):
    with pytest.raises(UserError, match="one class"):
        noise(dataset(20, 1), even_shards(20, 2), 0)


HUMAN = {"aggre": torch.arange(600) % 10, "worse": (torch.arange(600) // 2) % 10}


def test_human_labels_are_one_set_for_all_clients():
    data, shards = dataset(600, 10, annotations=HUMAN), even_shards(600, 6)
    noisy = Human("worse")(data, shards, 0)
    np.testing.assert_array_equal(noisy.labels, HUMAN["worse"].numpy())
    np.testing.assert_allclose(noisy.nominal, 0.9)  # i // 2 = i modulo ten for 0 and 19 of each twenty


def test_human_labels_differ_between_clients():
    data, shards = dataset(600, 10, annotations=HUMAN), even_shards(600, 6)
    noisy = Human("per_client")(data, shards, 0)
    level = {0.0: HUMAN["aggre"].numpy(), 0.9: HUMAN["worse"].numpy()}
    assert set(noisy.nominal) == set(level)
    for nominal, shard in zip(noisy.nominal, shards, strict=True):
        np.testing.assert_array_equal(noisy.labels[shard], level[nominal][shard])
    assert any((Human("per_client")(data, shards, seed).nominal != noisy.nominal).any() for seed in (1, 2))


def test_human_labels_that_are_not_there():
    with pytest.raises(UserError, match="tiny has none; type dataset=cifar10n"):
        Human("worse")(dataset(60, 10), even_shards(60, 3), 0)
    with pytest.raises(UserError, match=r"noise\.labels=wrose is not a label set of tiny; did you mean worse"):
        Human("wrose")(dataset(600, 10, annotations=HUMAN), even_shards(600, 3), 0)


def test_native_noise_keeps_the_published_labels_and_claims_no_level():
    data = dataset(60, 10, native_noise=True)
    noisy = Native()(data, even_shards(60, 3), 0)
    np.testing.assert_array_equal(noisy.labels, data.labels.numpy())
    assert np.isnan(noisy.nominal).all()
    with pytest.raises(UserError, match="type noise=none"):
        Native()(dataset(60, 10), even_shards(60, 3), 0)


@pytest.mark.parametrize("make", [HRandom, lambda *levels: HRandomOfficial(*levels, None)])
def test_random_counterpart_of_h_idn(make):
    data, shards = dataset(20_000, 4), even_shards(20_000, 10)
    noisy = make(0.35, 0.3, 0.5)(data, shards, 0)
    wrong = noisy.labels != data.labels.numpy()
    assert (noisy.nominal > 0).sum() == 3  # exactly floor(ρK)
    for eta, shard in zip(noisy.nominal, shards, strict=True):
        assert eta == 0 or 0.3 <= eta <= 0.5
        assert_binomial(wrong[shard].sum(), len(shard), eta * 0.75)


@pytest.mark.parametrize("name", NOISES)
def test_empty_clients_are_left_alone(name):
    shards = [np.empty(0, dtype=np.int64), *even_shards(60, 3), np.empty(0, dtype=np.int64)]
    assert len(NOISES[name](dataset(60, 10), shards, 0).nominal) == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RhoTau(1.5, 0.5, "exact", "all"), r"noise.rho must be in \[0, 1\], got 1.5; ρ is the probability"),
        (lambda: RhoTau(0.5, -1, "exact", "all"), r"noise.tau must be in \[0, 1\], got -1"),
        (lambda: RhoTau(0.5, 0.5, "some", "all"), "noise.count must be exact or bernoulli"),
        (lambda: RhoTau(0.5, 0.5, "exact", "some"), "noise.label_pool must be all or ten"),
        (lambda: RhoTauOfficial(1.5, 0.5, "ten", None), r"noise.rho must be in \[0, 1\], got 1.5"),
        (lambda: RhoTauOfficial(0.5, 0.5, "some", None), "noise.label_pool must be all or ten"),
        (lambda: RhoTauOfficial(0.5, 0.5, "ten", -1), "noise.legacy_seed must be a whole number"),
        (lambda: Ramp("uniform", 0.0, 0.4, "pair_flip"), "noise.kind must be one of symmetric, asymmetric, mixed"),
        (lambda: Ramp("symmetric", 0.5, 0.4, "pair_flip"), r"noise.low must be in \[0, 0.4\], got 0.5"),
        (lambda: Ramp("symmetric", 0.0, 1.4, "pair_flip"), r"noise.high must be in \[0, 1\], got 1.4"),
        (
            lambda: Ramp("asymmetric", 0.0, 0.4, "superclass"),
            "noise.map must be one of pair_flip, semantic, super_class, got 'superclass'; did you mean super_class",
        ),
        (lambda: RampOfficial("mixed", 0.0, 2.0, None), "noise.high must be in"),
        (lambda: HRandom(0.4, 0.6, 0.5), r"noise.eta_low must be in \[0, 0.5\], got 0.6"),
        (lambda: HRandomOfficial(0.4, 0.3, 1.5, None), r"noise.eta_high must be in \[0, 1\], got 1.5"),
    ],
)
def test_bad_parameters_are_named_by_their_config_key(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_pool_of_ten_needs_ten_classes():
    with pytest.raises(UserError, match=r"type noise\.label_pool=all"):
        RhoTau(0.5, 0.5, "exact", "ten")(dataset(60, 5), even_shards(60, 3), 0)
