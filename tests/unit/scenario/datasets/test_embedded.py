"""digits and synthetic: always the same, and shaped as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.datasets import load_digits

from fnll.errors import UserError
from fnll.images import InMemory
from fnll.scenario.datasets import digits, synthetic

SYNTHETIC = {"samples": 60, "test_samples": 30, "classes": 3, "size": 4, "channels": 2, "separation": 6.0}


def pixels(images) -> torch.Tensor:
    assert isinstance(images, InMemory)
    return images.pixels


class TestDigits:
    def test_is_all_of_scikit_learns_digits(self):
        data = digits()
        ours = torch.cat([pixels(data.train), pixels(data.test)]).flatten(1).numpy()
        theirs = np.round(load_digits().data * 255 / 16).astype(np.uint8)
        assert sorted(map(bytes, ours)) == sorted(map(bytes, theirs))

    def test_split_is_stratified_and_fixed(self):
        data = digits()
        assert (len(data.labels), len(data.test_labels)) == (1437, 360)
        assert data.labels.bincount().tolist() == [142, 145, 142, 146, 145, 146, 145, 143, 139, 144]
        assert data.test_labels.bincount().tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
        assert data.digest == "bfefdd2dab2503b3a1e263d8865e6721"  # a change here changes every result on digits

    def test_labels_belong_to_their_images(self):
        source = load_digits()
        known = {
            bytes(np.round(image * 255 / 16).astype(np.uint8)): y
            for image, y in zip(source.images, source.target, strict=True)
        }
        data = digits()
        found = [known[bytes(image.numpy())] for image in pixels(data.train)[:, 0]]
        assert data.labels.tolist() == found

    def test_statistics_are_those_of_the_training_images(self):
        data = digits()
        values = pixels(data.train).double() / 255
        assert data.transform.mean == (pytest.approx(float(values.mean()), abs=5e-5),)
        assert data.transform.std == (pytest.approx(float(values.std()), abs=5e-4),)

    def test_options_apply(self):
        data = digits(subset=100, validation=0.1)
        assert len(data.labels) == 100
        assert data.validation is not None
        assert len(data.validation) == 10
        assert len(data.test_labels) == 360


class TestSynthetic:
    def test_shape_and_balance(self):
        data = synthetic(**SYNTHETIC)
        assert data.train.shape == (2, 4, 4)
        assert data.labels.bincount().tolist() == [20, 20, 20]
        assert data.test_labels.bincount().tolist() == [10, 10, 10]
        assert data.num_classes == 3

    def test_seed_decides(self):
        assert synthetic(**SYNTHETIC, seed=1).digest == synthetic(**SYNTHETIC, seed=1).digest
        assert synthetic(**SYNTHETIC, seed=1).digest != synthetic(**SYNTHETIC, seed=2).digest
        assert synthetic(**SYNTHETIC).digest == "6a8bc6d00a915291a407a10044e26333"

    def test_error_of_the_best_classifier_is_as_promised(self):
        """Two classes two standard deviations apart: the nearest mean errs with probability Phi(-1) = 15.9 %."""
        settings = {**SYNTHETIC, "samples": 8000, "test_samples": 2000, "classes": 2, "separation": 2.0}
        data = synthetic(**settings)
        x, test = (data.transform.plain(pixels(part)).flatten(1) for part in (data.train, data.test))
        means = torch.stack([x[data.labels == c].mean(0) for c in range(2)])
        assert float((means[0] - means[1]).norm()) == pytest.approx(2.0, abs=0.15)
        wrong = int((torch.cdist(test, means).argmin(1) != data.test_labels).sum())
        expected = norm.cdf(-1) * 2000
        assert abs(wrong - expected) < 5 * math.sqrt(expected)

    def test_more_classes_than_pixels(self):
        data = synthetic(samples=40, test_samples=20, classes=20, size=2, channels=1, separation=8.0)
        assert data.labels.bincount().tolist() == [2] * 20

    @pytest.mark.parametrize(
        ("key", "value"),
        [("samples", 2), ("test_samples", 0), ("classes", 1), ("size", 0), ("channels", 0), ("separation", 0.0)],
    )
    def test_impossible_settings_are_refused(self, key, value):
        with pytest.raises(UserError, match=f"dataset.{key}"):
            synthetic(**{**SYNTHETIC, key: value})
