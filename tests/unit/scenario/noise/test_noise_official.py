"""The released codes' noise: values computed by hand, and digests.

The digests were computed outside this repository with transcriptions of the released functions, on partitions made the
same way (FedRN's shards with a stable sort in place of its unstable one).
"""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd
import pytest
import torch

from fnll.errors import UserError
from fnll.images import InMemory, Transform
from fnll.scenario.noise.annotator import Annotator
from fnll.scenario.noise.h_idn_official import HIdnOfficial, HRandomOfficial
from fnll.scenario.noise.models import Ramp
from fnll.scenario.noise.official import RampOfficial, RhoTauOfficial
from fnll.scenario.partition.official import BernoulliDirichletOfficial, IidOfficial, ShardsOfficial
from fnll.scenario.scenario import Dataset

LABELS = np.arange(1003) * 7919 % 10
ANNOTATOR = Annotator(width=1, epochs=1, batch_size=16, lr=0.01)


def dataset(labels: np.ndarray, num_classes: int) -> Dataset:
    images = InMemory(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8))
    y = torch.from_numpy(labels)
    return Dataset("tiny", images, y, images, y, num_classes, Transform((0.5,), (0.5,)))


def even(n: int, num_clients: int, num_classes: int = 10) -> tuple[Dataset, list[np.ndarray]]:
    return dataset(np.arange(n) % num_classes, num_classes), np.array_split(np.arange(n), num_clients)


def digest(labels: np.ndarray) -> str:
    return hashlib.blake2b(labels.astype("<i8").tobytes(), digest_size=8).hexdigest()


def test_fedcorr_levels_are_those_of_t4():
    mu = RhoTauOfficial(0.6, 0.5, "ten", 1)(*even(100, 10), 0).nominal
    expected = [0.709597, 0, 0.602226, 0.939059, 0.513694, 0.835234, 0.708652, 0.779345, 0.570193, 0.599051]
    np.testing.assert_allclose(mu, expected, atol=5e-7)


@pytest.mark.parametrize(
    ("rho", "noisy"),
    [
        (0.4, {1: 39, 2: 29, 3: 34, 4: 40, 5: 37}),
        (0.6, {1: 61, 2: 71, 3: 66, 4: 60, 5: 63, 13: 61}),
        (0.8, {1: 81, 2: 87, 3: 87, 4: 80, 5: 76}),
    ],
)
def test_fedcorr_has_as_many_noisy_clients_as_t4_says(rho, noisy):
    for seed, count in noisy.items():
        assert (RhoTauOfficial(rho, 0.5, "ten", seed)(*even(100, 100), 0).nominal > 0).sum() == count


@pytest.mark.parametrize(
    ("noise", "partition", "expected"),
    [
        (RhoTauOfficial(0.6, 0.5, "ten", 13), IidOfficial(13), "a38fa6b24d08e5ac"),
        (RhoTauOfficial(0.6, 0.5, "ten", 13), BernoulliDirichletOfficial(0.7, 10.0, 13), "4de57454ac2e8185"),
        (RampOfficial("symmetric", 0.0, 0.8, 1), ShardsOfficial(2, 1), "158a596cd8e58f6a"),
        (RampOfficial("asymmetric", 0.0, 0.8, 1), ShardsOfficial(2, 1), "fca4890d95b175d5"),
        (RampOfficial("mixed", 0.0, 0.8, 1), ShardsOfficial(2, 1), "6f1e800ef0696eca"),
        (HRandomOfficial(0.4, 0.3, 0.5, 0), BernoulliDirichletOfficial(0.9, 2.0, 100), "afbb2b74a1479694"),
    ],
    ids=lambda value: getattr(value, "kind", type(value).__name__),
)
def test_labels_are_those_of_the_released_code(noise, partition, expected):
    assert digest(noise(dataset(LABELS, 10), partition(LABELS, 10, 0), 0).labels) == expected


def write_soft_labels(path, n: int = 1003, num_classes: int = 10):
    soft = 1.0 + (np.arange(n)[:, None] * 31 + np.arange(num_classes) * 17) % 23
    table = pd.DataFrame(soft / soft.sum(1, keepdims=True))
    table.insert(0, "id", range(n))
    table.to_csv(path, index=False)
    return path


def test_h_idn_labels_are_those_of_the_released_code(tmp_path):
    parts = BernoulliDirichletOfficial(0.9, 2.0, 100)(LABELS, 10, 0)
    noise = HIdnOfficial(0.4, 0.3, 0.5, ANNOTATOR, str(write_soft_labels(tmp_path / "soft.csv")), 0)
    noisy = noise(dataset(LABELS, 10), parts, 0)
    assert digest(noisy.labels) == "c2db329f121d521a"
    wrong = noisy.labels != LABELS
    for eta, part in zip(noisy.nominal, parts, strict=True):
        assert wrong[part].sum() == int(eta * len(part))  # realised = floor(η n) / n


def test_h_idn_soft_labels_that_do_not_fit_are_refused(tmp_path):
    def refused(path, message):
        with pytest.raises(UserError, match=message):
            HIdnOfficial(0.4, 0.3, 0.5, ANNOTATOR, str(path), 0)(*even(100, 5), 0)

    refused(tmp_path / "absent.csv", r"noise\.soft_labels=.*absent.csv cannot be read")
    refused(write_soft_labels(tmp_path / "short.csv", n=99), "100 rows, and 10 columns .* it has 99 rows and 10 such")
    refused(write_soft_labels(tmp_path / "narrow.csv", n=100, num_classes=9), "it has 100 rows and 9 such columns")
    (tmp_path / "text.csv").write_text("id,a\n1,many\n")
    refused(tmp_path / "text.csv", "cannot be read")


def test_h_idn_with_a_certain_annotator_fails_with_advice(tmp_path):
    data, shards = even(100, 5)
    table = pd.DataFrame(np.eye(10)[data.labels.numpy()])
    table.insert(0, "id", range(100))
    table.to_csv(tmp_path / "certain.csv", index=False)
    noise = HIdnOfficial(1.0, 0.3, 0.5, ANNOTATOR, str(tmp_path / "certain.csv"), 0)
    with pytest.raises(UserError, match=r"its annotator is certain of all but 0, .* type noise=h_idn"):
        noise(data, shards, 0)


@pytest.mark.parametrize(
    ("kind", "high", "last", "mean", "total"),
    [
        ("symmetric", 0.4, 0.396, 0.198, 9900),
        ("asymmetric", 0.8, 0.792, 0.396, 19_800),
        ("mixed", 0.4, 0.392, 0.196, 9800),
    ],
)
def test_fedrn_ramp_is_that_of_t8(kind, high, last, mean, total):
    data, shards = even(50_000, 100)
    noisy = RampOfficial(kind, 0.0, high, 1)(data, shards, 0)
    wrong = noisy.labels != data.labels.numpy()
    levels = [noisy.nominal[0], noisy.nominal[-1], noisy.nominal.mean()]
    np.testing.assert_allclose(levels, [0, last, mean], atol=1e-12)
    assert wrong.sum() == total
    assert max(wrong[shard].sum() for shard in shards) == round(500 * last)


@pytest.mark.parametrize("num_classes", [10, 100])
def test_fedrn_asymmetric_is_one_class_down_on_every_data_set(num_classes):
    data, shards = even(200, 2, num_classes)
    noisy = RampOfficial("asymmetric", 1.0, 1.0, 1)(data, shards, 0)
    assert noisy.labels[[0, 5]].tolist() == [num_classes - 1, 4]


def test_fedrn_corrupts_the_same_positions_of_clients_of_one_size():
    data, shards = even(400, 4)

    def positions(noise):
        wrong = noise(data, shards, 0).labels != data.labels.numpy()
        return {tuple(np.flatnonzero(wrong[shard])) for shard in shards}

    assert len(positions(RampOfficial("asymmetric", 0.5, 0.5, 1))) == 1
    assert len(positions(Ramp("asymmetric", 0.5, 0.5, "pair_flip"))) == 4
