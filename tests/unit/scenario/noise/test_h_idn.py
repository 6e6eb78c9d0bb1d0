"""H-IDN: values by hand, hard samples first, never the true label; annotators that are cached and reproducible."""

from __future__ import annotations

from dataclasses import replace

import joblib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fnll.errors import UserError
from fnll.images import InMemory, Transform
from fnll.scenario.noise import annotator as annotator_module
from fnll.scenario.noise.annotator import LARGEST_SIDE, Annotator, Task, probabilities, shrunk, train
from fnll.scenario.noise.h_idn import HIdn, flip, flip_distribution, levels, selection, soft_labels, wrong_probability
from fnll.scenario.noise.h_idn_official import HIdnOfficial
from fnll.scenario.scenario import Dataset
from fnll.system.cache import cache_dir

P = np.array([[0.9, 0.08, 0.02], [0.3, 0.5, 0.2], [0.25, 0.25, 0.5]])
Y = np.array([0, 1, 2])
SMALL = Annotator(width=4, epochs=3, batch_size=8, lr=0.01)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))


def squares(n: int = 240, side: int = 6, seed: int = 0) -> Dataset:
    """Three classes: a bright square in one of three corners. One sample in five is almost grey, so it is hard."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    pixels = rng.integers(110, 146, size=(n, 1, side, side))
    half = side // 2
    corners = [
        (slice(0, half), slice(0, half)),
        (slice(0, half), slice(half, None)),
        (slice(half, None), slice(0, half)),
    ]
    for i, label in enumerate(labels):
        rows, columns = corners[label]
        pixels[i, 0, rows, columns] += 2 if hard(i) else 90
    images = InMemory(torch.from_numpy(pixels.astype(np.uint8)))
    y = torch.from_numpy(labels)
    return Dataset("squares", images, y, images, y, 3, Transform((0.5,), (0.1,)))


def hard(i: int) -> bool:
    return i // 3 % 5 == 0


def shards(n: int = 240, num_clients: int = 4) -> list[np.ndarray]:
    return [np.sort(part) for part in np.array_split(np.random.default_rng(1).permutation(n), num_clients)]


def test_t3():
    np.testing.assert_allclose(wrong_probability(P, Y), [0.1, 0.5, 0.5])
    np.testing.assert_allclose(selection(P, Y, epsilon=0), [0.090909, 0.454545, 0.454545], atol=1e-6)
    np.testing.assert_allclose(flip_distribution(P, Y), [[0, 0.8, 0.2], [0.6, 0, 0.4], [0.5, 0.5, 0]])


def test_flip_draws_from_the_distributions_of_t3():
    n = 4000
    rng = np.random.default_rng(0)
    firsts = [int(np.flatnonzero(flip(P, Y, 1, rng) != Y)[0]) for _ in range(n)]
    for sample, probability in enumerate((1 / 11, 5 / 11, 5 / 11)):
        low, high = binom.interval(1 - 1e-6, n, probability)
        assert low <= firsts.count(sample) <= high
    drawn = flip(np.repeat(P, n, axis=0), np.repeat(Y, n), 3 * n, rng).reshape(3, n)
    for labels, distribution in zip(drawn, flip_distribution(P, Y), strict=True):
        low, high = binom.interval(1 - 1e-6, n, distribution)
        counts = np.bincount(labels, minlength=3)
        assert ((low <= counts) & (counts <= high)).all()


@given(n=st.integers(1, 60), num_classes=st.integers(2, 12), share=st.floats(0, 1), seed=st.integers(0, 2**62))
@settings(max_examples=60, deadline=None)
def test_exactly_the_count_changes_and_never_to_the_true_label(n, num_classes, share, seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(num_classes, 0.1), size=n)
    labels = rng.integers(num_classes, size=n)
    before = labels.copy()
    count = int(share * n)
    observed = flip(p, labels, count, rng)
    assert (observed != labels).sum() == count
    assert observed.min() >= 0
    assert observed.max() < num_classes
    np.testing.assert_array_equal(labels, before)


@pytest.mark.parametrize("certain", [np.eye(3)[[0, 1, 2]], np.full((3, 3), np.nextafter(0, 1)) + np.eye(3)])
def test_a_saturated_annotator_can_be_followed(certain):
    """p(y|x) = 1 for all samples: ε makes them equally likely, and the new label is uniform over the others."""
    np.testing.assert_allclose(selection(certain, Y), 1 / 3)
    assert (flip(certain, Y, 3, np.random.default_rng(0)) != Y).all()


def test_a_certain_row_flips_evenly():
    np.testing.assert_allclose(flip_distribution(np.array([[0.0, 1.0, 0.0]]), np.array([1])), [[0.5, 0, 0.5]])


@pytest.mark.parametrize(
    ("rho", "num_clients", "noisy"), [(0.4, 20, 8), (0.29, 100, 29), (0.35, 10, 3), (0, 5, 0), (1, 5, 5)]
)
def test_the_number_of_noisy_clients_is_exact(rho, num_clients, noisy):
    eta = levels(rho, 0.3, 0.5, num_clients, seed=0)
    assert (eta > 0).sum() == noisy
    assert ((eta == 0) | ((eta >= 0.3) & (eta <= 0.5))).all()


def test_realised_levels_are_the_nominal_ones_and_clean_clients_are_untouched():
    data, parts = squares(), shards()
    noisy = HIdn(0.5, 0.3, 0.5, SMALL)(data, parts, 0)
    wrong = noisy.labels != data.labels.numpy()
    assert (noisy.nominal > 0).sum() == 2
    for eta, part in zip(noisy.nominal, parts, strict=True):
        assert wrong[part].sum() == int(eta * len(part))


def test_hard_samples_are_preferred():
    """With a fifth of all samples mislabelled, the grey fifth is mislabelled far more often than the rest."""
    data, parts = squares(600), [np.arange(600)]
    noisy = HIdn(1.0, 0.2, 0.2, replace(SMALL, epochs=10))(data, parts, 0)
    wrong = noisy.labels != data.labels.numpy()
    is_hard = np.array([hard(i) for i in range(600)])
    assert wrong.sum() == 120
    assert wrong[is_hard].mean() > 5 * wrong[~is_hard].mean()


def test_another_seed_gives_other_annotators_and_other_labels():
    data, parts = squares(), shards()
    first, again, other = (HIdn(1.0, 0.3, 0.5, SMALL)(data, parts, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.labels, again.labels)
    assert (first.labels != other.labels).any()
    a, b = (soft_labels(SMALL, data, {0: parts[0]}, seed)[0] for seed in (1, 2))
    assert not np.allclose(a, b)


def test_every_client_has_an_annotator_of_its_own():
    data, part = squares(), np.arange(60)
    p = soft_labels(SMALL, data, {0: part, 1: part}, 0)
    assert not np.allclose(p[0], p[1])


def test_clients_without_a_sample_to_mislabel_need_no_annotator():
    data = squares()
    parts = [np.empty(0, dtype=np.int64), np.array([3]), np.arange(10, 12)]
    noisy = HIdn(1.0, 0.3, 0.4, SMALL)(data, parts, 0)
    np.testing.assert_array_equal(noisy.labels, data.labels.numpy())
    assert not (cache_dir() / "annotators").exists()


def test_a_client_with_one_class_gets_labels_of_the_others():
    data = squares()
    part = np.arange(0, 240, 3)
    noisy = HIdn(1.0, 0.5, 0.5, SMALL)(data, [part], 0)
    assert (noisy.labels[part] != 0).sum() == 40


def task(data: Dataset, part: np.ndarray, settings: Annotator = SMALL, seed: int = 0) -> Task:
    return Task(settings, part, data.labels.numpy()[part], data.num_classes, data.transform, seed)


def test_annotators_are_trained_once(monkeypatch):
    data, parts = squares(), shards()
    first = probabilities(data, [task(data, part) for part in parts])
    monkeypatch.setattr(annotator_module, "train", None)  # would fail
    for a, b in zip(first, probabilities(data, [task(data, part) for part in parts]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("damage", [b"", b"nonsense", "flip"])
def test_a_damaged_cache_entry_is_made_again(damage):
    data, part = squares(), np.arange(60)
    before = probabilities(data, [task(data, part)])[0]
    (file,) = (cache_dir() / "annotators").glob("*/probabilities.npz")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(bytes(content) if damage == "flip" else damage)
    np.testing.assert_array_equal(probabilities(data, [task(data, part)])[0], before)
    np.testing.assert_array_equal(np.load(file)["p"], before)


def test_the_cache_entry_depends_on_everything_the_probabilities_depend_on():
    data, part = squares(), np.arange(60)
    one = task(data, part)
    others = [
        replace(one, annotator=replace(SMALL, epochs=4)),
        replace(one, annotator=replace(SMALL, lr=0.02)),
        replace(one, index=np.arange(1, 61)),
        replace(one, labels=one.labels[::-1]),
        replace(one, num_classes=4),
        replace(one, transform=Transform((0.4,), (0.1,))),
        replace(one, seed=1),
    ]
    assert len({one.name("images"), one.name("others"), *(other.name("images") for other in others)}) == 9


@pytest.mark.slow  # two fresh processes import torch
def test_probabilities_do_not_depend_on_the_workers(monkeypatch, tmp_path):
    data, parts = squares(), shards(num_clients=3)
    tasks = [task(data, part) for part in parts]
    alone = probabilities(data, tasks)
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(annotator_module, "WORTH_WORKERS", 0)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    in_workers = []
    monkeypatch.setattr(annotator_module, "train", lambda *_: in_workers.append(1))  # this process must train none
    for a, b in zip(alone, probabilities(data, tasks), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not in_workers


def test_probabilities_do_not_depend_on_the_threads_and_give_them_back():
    data, part = squares(), np.arange(60)
    one = task(data, part)
    first = train(one, shrunk(data, part))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        np.testing.assert_array_equal(train(one, shrunk(data, part)), first)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(first.sum(1), 1)


def test_training_leaves_the_global_generator_alone():
    data, part = squares(), np.arange(60)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    train(task(data, part), shrunk(data, part))
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


@pytest.mark.parametrize("side", [1, 2, 7, 50])
@pytest.mark.parametrize("n", [1, 9])
def test_images_of_any_size_and_clients_of_any_size(side, n):
    data, part = squares(12, side), np.arange(n)
    pixels = shrunk(data, part)
    assert pixels.shape == (n, 1, min(side, LARGEST_SIDE), min(side, LARGEST_SIDE))
    assert train(task(data, part), pixels).shape == (n, 3)


def test_a_diverging_annotator_is_reported():
    data, part = squares(), np.arange(60)
    with pytest.raises(UserError, match=r"noise\.annotator\.lr=1e\+30 makes an annotator diverge"):
        probabilities(data, [task(data, part, replace(SMALL, lr=1e30))])
    assert not list((cache_dir() / "annotators").glob("*/probabilities.npz"))


def test_the_released_draws_use_the_same_annotators(monkeypatch):
    data, parts = squares(), shards()
    HIdn(1.0, 0.3, 0.5, SMALL)(data, parts, 0)
    monkeypatch.setattr(annotator_module, "train", None)
    noisy = HIdnOfficial(0.5, 0.3, 0.5, SMALL, None, 0)(data, parts, 0)
    wrong = noisy.labels != data.labels.numpy()
    assert [wrong[part].sum() for part in parts] == [
        int(eta * len(part)) for eta, part in zip(noisy.nominal, parts, strict=True)
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: HIdn(1.5, 0.3, 0.5, SMALL),
            r"noise.rho must be in \[0, 1\], got 1.5; ρ is the share of noisy clients",
        ),
        (lambda: HIdn(0.5, 0.6, 0.5, SMALL), r"noise.eta_low must be in \[0, 0.5\], got 0.6"),
        (lambda: HIdnOfficial(0.5, 0.3, 1.5, SMALL, None, None), "noise.eta_high must be in"),
        (lambda: HIdnOfficial(0.5, 0.3, 0.5, SMALL, None, -1), "noise.legacy_seed must be a whole number"),
        (lambda: replace(SMALL, epochs=0), "noise.annotator.epochs must be a whole number of at least 1"),
        (lambda: replace(SMALL, width=0), "noise.annotator.width must be a whole number of at least 1"),
        (lambda: replace(SMALL, batch_size=0), "noise.annotator.batch_size must be a whole number of at least 1"),
        (lambda: replace(SMALL, lr=0.0), "noise.annotator.lr must be greater than 0"),
    ],
)
def test_bad_parameters_are_named_by_their_config_key(make, message):
    with pytest.raises(UserError, match=message):
        make()
