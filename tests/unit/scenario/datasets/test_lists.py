"""Clothing1M key lists, WebVision lists, ISIC and ICH tables: in their true format, made small."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from PIL import Image

from fnll.errors import UserError
from fnll.images import HorizontalFlip, InMemory, RandomAffine, RandomCrop, RandomResizedCrop
from fnll.scenario.datasets import clothing1m, ich, isic2019, webvision_mini
from fnll.scenario.datasets.streaming import Streaming


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))


def write_image(file: Path, value: int, height: int = 40, width: int = 50, mode: str = "RGB") -> None:
    """A flat image: its value survives resizing and JPEG, so it says which image this is."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (width, height), (value,) * 3 if mode == "RGB" else value).save(file)


def values(images) -> list[int]:
    """The value of each flat image, in steps of ten."""
    centre = images.take(torch.arange(len(images)))[:, 0, images.shape[1] // 2, images.shape[2] // 2]
    return [round(int(value) / 10) * 10 for value in centre]


class TestClothing1M:
    TRAIN = ("images/0/00/1,2.jpg", "images/1/01/3,4.jpg", "images/0/02/5,6.jpg")
    TEST = ("images/9/09/7,8.jpg",)

    @pytest.fixture(params=["", "annotations"])
    def root(self, request, tmp_path) -> Path:
        for i, name in enumerate((*self.TRAIN, *self.TEST)):
            write_image(tmp_path / "c" / name, 10 * (i + 1))
        lists = tmp_path / "c" / request.param
        lists.mkdir(exist_ok=True)
        (lists / "noisy_train_key_list.txt").write_text("\n".join(self.TRAIN) + "\n")
        (lists / "clean_test_key_list.txt").write_text("\n".join(self.TEST) + "\n")
        # the label lists hold more images than the key lists, in another order
        noisy = [f"{self.TRAIN[2]} 13", "images/5/05/unused.jpg 1", f"{self.TRAIN[0]} 0", f"{self.TRAIN[1]} 5"]
        (lists / "noisy_label_kv.txt").write_text("\n".join(noisy) + "\n")
        (lists / "clean_label_kv.txt").write_text(f"{self.TRAIN[0]} 7\n{self.TEST[0]} 3\n")
        return tmp_path / "c"

    def test_reads(self, root):
        data = clothing1m(root=str(root), streaming=True)
        assert isinstance(data.train, Streaming)
        assert data.train.shape == (3, 256, 256)
        assert data.test.shape == (3, 224, 224)
        assert values(data.train) == [10, 20, 30]
        assert data.labels.tolist() == [0, 5, 13]
        assert values(data.test) == [40]
        assert data.test_labels.tolist() == [3]
        assert data.native_noise
        assert data.num_classes == len(data.class_names) == 14

    def test_transform_of_fedcorr(self, root):
        transform = clothing1m(root=str(root), streaming=True).transform
        assert transform.augmentations == (RandomCrop(0, size=224), HorizontalFlip())
        assert transform.shape((3, 256, 256)) == (3, 224, 224)

    def test_network_input_has_one_size(self, root):
        data = clothing1m(root=str(root), streaming=True)
        pixels = data.train.take(torch.tensor([0]))
        for x in (
            data.transform.plain(pixels),
            data.transform.augmented(pixels, torch.Generator()),
            data.transform.plain(data.test.take(torch.tensor([0]))),
        ):
            assert x.shape == (1, 3, 224, 224)

    def test_decoded_once_if_asked_for(self, root):
        data = clothing1m(root=str(root), streaming=False, subset=2)
        assert isinstance(data.train, InMemory)
        assert len(data.train) == 2

    def test_every_missing_list_is_named(self, root):
        for file in root.rglob("clean_*.txt"):
            file.unlink()
        with pytest.raises(UserError, match=r"clean_test_key_list\.txt.*clean_label_kv\.txt cannot be read.*Cysu"):
            clothing1m(root=str(root), streaming=True)

    def test_missing_images(self, root):
        (root / self.TRAIN[1]).unlink()
        data = clothing1m(root=str(root), streaming=True)
        with pytest.raises(UserError, match=r"images/1/01/3,4\.jpg cannot be read"):
            data.digest  # noqa: B018

    def test_an_image_without_a_label(self, root):
        file = next(root.rglob("noisy_label_kv.txt"))
        file.write_text("".join(line for line in file.open() if "3,4" not in line))
        with pytest.raises(UserError, match=r"1 images of .*have no label in .*first is images/1/01/3,4\.jpg"):
            clothing1m(root=str(root), streaming=True)

    @pytest.mark.parametrize(
        ("line", "message"),
        [("images/a.jpg", "line 1 of .*noisy_label_kv"), ("images/a.jpg x", "line 1"), ("images/a.jpg 14", "label 14")],
    )
    def test_damaged_lists(self, root, line, message):
        file = next(root.rglob("noisy_label_kv.txt"))
        file.write_text(line + "\n" + file.read_text())
        with pytest.raises(UserError, match=message):
            clothing1m(root=str(root), streaming=True)

    def test_an_empty_list(self, root):
        next(root.rglob("noisy_train_key_list.txt")).write_text("\n")
        with pytest.raises(UserError, match=r"noisy_train_key_list\.txt is empty"):
            clothing1m(root=str(root), streaming=True)

    def test_a_binary_file(self, root):
        next(root.rglob("noisy_train_key_list.txt")).write_bytes(b"\xff\xfe\x00")
        with pytest.raises(UserError, match=r"noisy_train_key_list\.txt is no text file"):
            clothing1m(root=str(root), streaming=True)


class TestWebVision:
    SETTINGS = MappingProxyType({"resize": 33, "crop": 32, "streaming": False})

    @pytest.fixture(params=["val_images_256", "webvision_val"])
    def root(self, request, tmp_path) -> Path:
        root = tmp_path / "w"
        for name, value in [("google/q0001/a.jpg", 10), ("google/q0002/b.jpg", 20), ("google/q0050/c.jpg", 30)]:
            write_image(root / name, value)
        for name, value in [("val000001.jpg", 40), ("val000003.jpg", 50)]:
            write_image(root / request.param / name, value, height=60, width=45)
        (root / "info").mkdir()
        train = ["google/q0001/a.jpg 0", "google/q0051/absent.jpg 50", "google/q0050/c.jpg 49", "google/q0002/b.jpg 1"]
        (root / "info" / "train_filelist_google.txt").write_text("\n".join(train) + "\n")
        (root / "info" / "val_filelist.txt").write_text("val000001.jpg 49\nval000002.jpg 999\nval000003.jpg 0\n")
        return root

    def test_first_fifty_classes(self, root):
        data = webvision_mini(root=str(root), **self.SETTINGS)
        assert values(data.train) == [10, 30, 20]
        assert data.labels.tolist() == [0, 49, 1]
        assert values(data.test) == [40, 50]
        assert data.test_labels.tolist() == [49, 0]
        assert (data.num_classes, data.native_noise) == (50, True)

    def test_transform_of_fedrn(self, root):
        data = webvision_mini(root=str(root), **self.SETTINGS)
        assert data.train.shape == (3, 33, 33)
        assert data.test.shape == (3, 32, 32)
        assert data.transform.augmentations == (RandomResizedCrop(32), HorizontalFlip())
        pixels = data.train.take(torch.arange(3))
        assert data.transform.augmented(pixels, torch.Generator()).shape == (3, 3, 32, 32)
        assert data.transform.plain(pixels).shape == (3, 3, 32, 32)

    def test_missing_lists(self, root):
        (root / "info" / "val_filelist.txt").unlink()
        with pytest.raises(UserError, match=r"info/val_filelist\.txt cannot be read.*dataset\.root=DIR"):
            webvision_mini(root=str(root), **self.SETTINGS)

    def test_missing_validation_images(self, root):
        for folder in ("val_images_256", "webvision_val"):
            if (root / folder).exists():
                (root / folder).rename(root / "elsewhere")
        with pytest.raises(UserError, match=r"looked for .*val_images_256"):
            webvision_mini(root=str(root), **self.SETTINGS)

    def test_a_missing_image(self, root):
        (root / "google" / "q0050" / "c.jpg").unlink()
        with pytest.raises(UserError, match=r"google/q0050/c\.jpg cannot be read"):
            webvision_mini(root=str(root), **self.SETTINGS)

    def test_a_crop_larger_than_the_image(self, root):
        with pytest.raises(UserError, match=r"dataset\.resize must be a whole number of at least 40"):
            webvision_mini(root=str(root), resize=33, crop=40, streaming=False)


class TestIsic:
    CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    SETTINGS = MappingProxyType({"size": 24, "streaming": False})

    def table(self, file: Path, rows: dict[str, int], number: str = "{}.0") -> None:
        """As the challenge publishes it: floats, and a column UNK that nobody has."""
        lines = [",".join(("image", *self.CLASSES, "UNK"))]
        for name, label in rows.items():
            marks = [number.format(int(c == label)) for c in range(9)]
            lines.append(",".join((name, *marks)))
        file.write_text("\n".join(lines) + "\n")

    @pytest.fixture
    def root(self, tmp_path) -> Path:
        root = tmp_path / "i"
        for i in range(20):
            write_image(root / "ISIC_2019_Training_Input" / f"ISIC_{i:07}.jpg", 10 * i)
        return root

    def test_ground_truth_is_split_within_classes(self, root):
        labels = {f"ISIC_{i:07}": i % 2 * 7 for i in range(20)}
        self.table(root / "ISIC_2019_Training_GroundTruth.csv", labels)
        data = isic2019(root=str(root), **self.SETTINGS)
        assert data.labels.bincount().tolist() == [7, 0, 0, 0, 0, 0, 0, 7]
        assert data.test_labels.bincount().tolist() == [3, 0, 0, 0, 0, 0, 0, 3]
        assert sorted(values(data.train) + values(data.test)) == [10 * i for i in range(20)]
        for images, given in [(data.train, data.labels), (data.test, data.test_labels)]:
            assert [value // 10 % 2 * 7 for value in values(images)] == given.tolist()
        again = isic2019(root=str(root), **self.SETTINGS, seed=5)
        assert again.digest == data.digest  # the split is the data set's own, whatever the seed

    def test_a_split_of_ones_own(self, root):
        self.table(root / "train.csv", {"ISIC_0000003": 2, "ISIC_0000001": 5}, "{}")
        self.table(root / "test.csv", {"ISIC_0000002": 1})
        data = isic2019(root=str(root), **self.SETTINGS)
        assert (values(data.train), data.labels.tolist()) == ([30, 10], [2, 5])
        assert (values(data.test), data.test_labels.tolist()) == ([20], [1])
        assert data.train.shape == (3, 24, 24)
        assert data.transform.augmentations == (RandomAffine(10, 0.02), HorizontalFlip())
        assert data.class_names == self.CLASSES

    def test_missing_table(self, root):
        with pytest.raises(UserError, match=r"ISIC_2019_Training_GroundTruth\.csv cannot be read.*isic-archive"):
            isic2019(root=str(root), **self.SETTINGS)

    def test_missing_images(self, root):
        self.table(root / "ISIC_2019_Training_GroundTruth.csv", {f"ISIC_{i:07}": i % 2 for i in range(23)})
        with pytest.raises(UserError, match=r"ISIC_00000\d\d\.jpg cannot be read"):
            isic2019(root=str(root), **self.SETTINGS)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "is not a CSV file"),
            ("image,MEL\nISIC_0000001,1\n", "has no column NV, BCC"),
            ("image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC\nISIC_0000001,1,1,0,0,0,0,0,0\n", "ISIC_0000001 .* has 2 of the"),
            ("image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC\nISIC_0000001,0,0,0,0,0,0,0,0\n", "ISIC_0000001 .* has 0 of the"),
        ],
    )
    def test_damaged_tables(self, root, content, message):
        (root / "ISIC_2019_Training_GroundTruth.csv").write_text(content)
        with pytest.raises(UserError, match=message):
            isic2019(root=str(root), **self.SETTINGS)


class TestIch:
    HEADER = "id,epidural,intraparenchymal,intraventricular,subarachnoid,subdural\n"

    @pytest.fixture(params=["{}.csv", "{}_ICH.csv"])
    def root(self, request, tmp_path) -> Path:
        root = tmp_path / "h"
        for i, name in enumerate(("ID_3a08", "ID_78d9", "ID_28c1")):
            write_image(root / "stage_1_train_images" / f"{name}.png", 10 * (i + 1), 16, 16, mode="L")
        (root / request.param.format("train")).write_text(self.HEADER + "ID_78d9,0,0,0,0,1\nID_3a08,1,0,0,0,0\n")
        (root / request.param.format("test")).write_text(self.HEADER + "ID_28c1,0,0,1,0,0\n")
        return root

    def test_reads(self, root):
        data = ich(root=str(root), size=None, streaming=False)
        assert data.train.shape == (3, 16, 16)  # as large as the files are
        assert (values(data.train), data.labels.tolist()) == ([20, 10], [4, 0])
        assert (values(data.test), data.test_labels.tolist()) == ([30], [2])
        assert data.num_classes == 5
        assert ich(root=str(root), size=8, streaming=False).train.shape == (3, 8, 8)

    def test_streams_the_same(self, root):
        data, stream = (ich(root=str(root), size=None, streaming=streaming) for streaming in (False, True))
        assert np.array_equal(data.train.take(torch.arange(2)), stream.train.take(torch.arange(2)))

    def test_missing_tables(self, root):
        for file in root.glob("*.csv"):
            file.unlink()
        with pytest.raises(UserError, match=r"train_ICH\.csv cannot be read.*wnn2000/FedNoRo"):
            ich(root=str(root), size=None, streaming=False)

    def test_missing_images(self, root):
        (root / "stage_1_train_images").rename(root / "pictures")
        with pytest.raises(UserError, match=r"no .*stage_1_train_images/ID_78d9\.png or \.jpg"):
            ich(root=str(root), size=None, streaming=False)
