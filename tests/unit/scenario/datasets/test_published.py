"""CIFAR pickles and IDX files in their true format, made small, and what is said when they are missing or damaged."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct
from pathlib import Path

import fnll  # noqa: F401  (first, so that torchvision can be imported on a CPU-only PyTorch)

# isort: split
import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from fnll.errors import UserError
from fnll.images import HorizontalFlip, RandomCrop
from fnll.scenario.datasets import cifar10, cifar100, fashion_mnist, mnist, mnist32
from fnll.scenario.noise import label_maps

RNG = np.random.default_rng(0)
CIFAR10, CIFAR100 = torchvision.datasets.CIFAR10, torchvision.datasets.CIFAR100


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pixels(n: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, 3, 32, 32)).astype(np.uint8)


def write_batch(file: Path, images: np.ndarray, **labels: list[int]) -> list[str]:
    """One file as published: a pickled dictionary with flat rows. Returns its name and checksum."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps({"data": images.reshape(len(images), 3072), **labels}))
    return [file.name, hashlib.md5(file.read_bytes()).hexdigest()]


@pytest.fixture
def ten(tmp_path, monkeypatch) -> tuple[Path, np.ndarray, list[int]]:
    """Two training batches and a test batch of CIFAR-10; torchvision is told their checksums."""
    folder = tmp_path / "data" / CIFAR10.base_folder
    images, labels = pixels(7), [3, 9, 0, 1, 3, 2, 9]
    train = [
        write_batch(folder / "data_batch_1", images[:4], labels=labels[:4]),
        write_batch(folder / "data_batch_2", images[4:], labels=labels[4:]),
    ]
    test = [write_batch(folder / "test_batch", images[:2], labels=[5, 6])]
    meta = write_batch(folder / "batches.meta", images[:0], label_names=list("abcdefghij"))
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", test)
    monkeypatch.setattr(CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": meta[1]})
    return tmp_path / "data", images, labels


@pytest.fixture
def hundred(tmp_path, monkeypatch) -> tuple[Path, np.ndarray]:
    folder = tmp_path / "data" / CIFAR100.base_folder
    images = pixels(3)
    train = write_batch(folder / "train", images, fine_labels=[99, 0, 42], coarse_labels=[1, 2, 3])
    test = write_batch(folder / "test", images[:1], fine_labels=[7], coarse_labels=[0])
    meta = write_batch(folder / "meta", images[:0], fine_label_names=[str(i) for i in range(100)])
    monkeypatch.setattr(CIFAR100, "train_list", [train])
    monkeypatch.setattr(CIFAR100, "test_list", [test])
    monkeypatch.setattr(CIFAR100, "meta", {"filename": "meta", "key": "fine_label_names", "md5": meta[1]})
    return tmp_path / "data", images


class TestCifar:
    def test_batches(self, ten):
        root, images, labels = ten
        for _ in range(2):  # the second time from the cache
            data = cifar10(root=str(root), download=False, images="batches")
            assert data.name == "cifar10"
            assert np.array_equal(data.train.take(torch.arange(7)).numpy(), images)
            assert data.labels.tolist() == labels
            assert data.test_labels.tolist() == [5, 6]
            assert np.array_equal(data.test.take(torch.arange(2)).numpy(), images[:2])

    def test_downloads_are_allowed_or_not(self, tmp_path):
        with pytest.raises(UserError, match=r"dataset\.download must be true or false, got 'maybe'"):
            cifar10(root=str(tmp_path), download="maybe", images="batches")
        assert not list(tmp_path.iterdir())

    def test_the_second_start_reads_no_pickle(self, ten, monkeypatch):
        cifar10(root=str(ten[0]), download=False, images="batches")
        monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled again"))
        cifar10(root=str(ten[0]), download=False, images="batches")

    def test_transform_of_the_papers(self, ten):
        transform = cifar10(root=str(ten[0]), download=False, images="batches").transform
        assert transform.mean == (0.485, 0.456, 0.406)
        assert transform.std == (0.229, 0.224, 0.225)
        assert transform.augmentations == (RandomCrop(4), HorizontalFlip(0.5))

    def test_hundred_classes(self, hundred):
        root, images = hundred
        data = cifar100(root=str(root), download=False, images="batches")
        assert data.labels.tolist() == [99, 0, 42]  # the fine labels
        assert data.num_classes == len(data.class_names) == 100
        assert data.class_names[:2] + data.class_names[-1:] == ("apple", "aquarium_fish", "worm")
        assert np.array_equal(data.train.take(torch.arange(3)).numpy(), images)
        assert data.transform.mean == (0.507, 0.487, 0.441)

    def test_options_apply(self, ten):
        data = cifar10(root=str(ten[0]), download=False, images="batches", subset=3)
        assert len(data.labels) == 3

    def test_a_missing_file_is_named_with_its_place_and_a_remedy(self, ten):
        (ten[0] / CIFAR10.base_folder / "data_batch_2").unlink()
        with pytest.raises(UserError) as error:
            cifar10(root=str(ten[0]), download=False, images="batches")
        message = str(error.value)
        assert str(ten[0] / CIFAR10.base_folder / "data_batch_2") in message
        assert "data_batch_1" not in message
        assert "dataset.download=true" in message
        assert "dataset.root=" in message

    def test_a_damaged_file_is_never_unpickled(self, ten, monkeypatch):
        file = ten[0] / CIFAR10.base_folder / "data_batch_2"
        file.write_bytes(file.read_bytes()[:-1] + b"!")
        monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled a damaged file"))
        with pytest.raises(UserError, match=r"data_batch_2 is damaged"):
            cifar10(root=str(ten[0]), download=False, images="batches")

    def test_download_only_when_asked_for(self, tmp_path, monkeypatch):
        asked = []

        def download(self: CIFAR10) -> None:
            asked.append(self.root)
            raise OSError("no route to host")

        monkeypatch.setattr(CIFAR10, "download", download)
        with pytest.raises(UserError, match=r"data_batch_1.* and 4 more cannot be read \(no such file\)"):
            cifar10(root=str(tmp_path / "none"), download=False, images="batches")
        assert asked == []
        with pytest.raises(UserError, match=r"data_batch_1.*the download failed: no route to host"):
            cifar10(root=str(tmp_path / "none"), download=True, images="batches")
        assert asked == [str(tmp_path / "none")]

    def test_download_leaves_files_alone_that_are_there(self, ten, monkeypatch):
        monkeypatch.setattr(CIFAR10, "download", lambda self: pytest.fail("downloaded"))
        cifar10(root=str(ten[0]), download=True, images="batches")

    def test_unknown_kind_of_images(self, tmp_path):
        with pytest.raises(UserError, match=r"dataset\.images must be batches .* or folder"):
            cifar10(root=str(tmp_path), download=False, images="tree")


class TestCifarFolder:
    NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def write(self, root: Path, suffix: str, names: tuple[str, ...] = NAMES, side: int = 32) -> str:
        for part in ("train", "test"):
            for name in names:
                folder = root / part / name
                folder.mkdir(parents=True)
                Image.fromarray(RNG.integers(0, 256, (side, side, 3)).astype(np.uint8)).save(folder / f"0000.{suffix}")
        return str(root)

    @pytest.mark.parametrize(("suffix", "name"), [("jpg", "CIFAR-10 (JPEG copy)"), ("png", "CIFAR-10 (PNG copy)")])
    def test_says_that_it_is_a_copy(self, tmp_path, suffix, name):
        data = cifar10(root=self.write(tmp_path / "c", suffix), download=False, images="folder")
        assert "type dataset=cifar10n dataset.images=folder" in (data.rearranged or "")
        assert data.name == name
        assert data.labels.tolist() == list(range(10))
        assert data.transform.mean == (0.485, 0.456, 0.406)

    def test_other_classes_are_refused(self, tmp_path):
        root = self.write(tmp_path / "c", "png", ("airplane", "zebra"))
        with pytest.raises(UserError, match=r"not its 10 classes.*dataset=image_folder"):
            cifar10(root=root, download=False, images="folder")

    def test_other_sizes_are_refused(self, tmp_path):
        root = self.write(tmp_path / "c", "png", side=16)
        with pytest.raises(UserError, match=r"16 x 16 pixels, not 32 x 32"):
            cifar10(root=root, download=False, images="folder")


def write_idx(file: Path, array: np.ndarray) -> None:
    """An IDX file: two zero bytes, type 8 (unsigned byte), number of dimensions, sizes, data; all big-endian."""
    file.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    file.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture(
    params=[(mnist, "MNIST"), (mnist32, "MNIST"), (fashion_mnist, "FashionMNIST")],
    ids=["mnist", "mnist32", "fashion_mnist"],
)
def idx(request, tmp_path):
    loader, name = request.param
    raw = tmp_path / "data" / name / "raw"
    images = RNG.integers(0, 256, (5, 28, 28)).astype(np.uint8)
    write_idx(raw / "train-images-idx3-ubyte", images)
    write_idx(raw / "train-labels-idx1-ubyte", np.array([4, 0, 9, 9, 1]))
    write_idx(raw / "t10k-images-idx3-ubyte", images[:2])
    write_idx(raw / "t10k-labels-idx1-ubyte", np.array([7, 8]))
    return loader, tmp_path / "data", raw, images


class TestIdx:
    def test_reads(self, idx):
        loader, root, _, images = idx
        for _ in range(2):
            data = loader(root=str(root), download=False)
            assert data.train.shape == (1, 28, 28)
            assert np.array_equal(data.train.take(torch.arange(5))[:, 0].numpy(), images)
            assert data.labels.tolist() == [4, 0, 9, 9, 1]
            assert data.labels.dtype == torch.int64
            assert data.test_labels.tolist() == [7, 8]
            assert len(data.class_names) == 10

    def test_missing(self, idx):
        loader, root, raw, _ = idx
        (raw / "t10k-labels-idx1-ubyte").unlink()
        with pytest.raises(UserError, match=r"raw/t10k-labels-idx1-ubyte cannot be read.*dataset\.download=true"):
            loader(root=str(root), download=False)

    @pytest.mark.parametrize("content", [b"", b"\0\0", b"\0\0\x08\x03\0\0\0\x05", b"something else entirely"])
    def test_damaged(self, idx, content):
        loader, root, raw, _ = idx
        (raw / "train-images-idx3-ubyte").write_bytes(content)
        with pytest.raises(UserError, match=r"raw/train-images-idx3-ubyte is corrupted"):
            loader(root=str(root), download=False)

    def test_truncated(self, idx):
        loader, root, raw, _ = idx
        file = raw / "train-images-idx3-ubyte"
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(UserError, match=r"raw/train-images-idx3-ubyte is corrupted"):
            loader(root=str(root), download=False)

    def test_images_and_labels_of_other_lengths(self, idx):
        loader, root, raw, _ = idx
        write_idx(raw / "train-labels-idx1-ubyte", np.array([4, 0]))
        with pytest.raises(UserError, match=r"holds 5 images and .*train-labels-idx1-ubyte 2 labels"):
            loader(root=str(root), download=False)

    @pytest.mark.parametrize("place", ["as torchvision", "as Debian"])
    def test_packed_files_are_read_in_place(self, idx, place):
        loader, root, raw, images = idx
        for file in list(raw.iterdir()):
            (raw / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
        if place == "as Debian":
            raw.rename(root / {"MNIST": "mnist", "FashionMNIST": "fashion-mnist"}[raw.parent.name])
        data = loader(root=str(root), download=False)
        assert data.labels.tolist() == [4, 0, 9, 9, 1]
        assert np.array_equal(data.train.take(torch.arange(5))[:, 0].numpy(), images)

    def test_a_damaged_packed_file(self, idx):
        loader, root, raw, _ = idx
        file = raw / "train-images-idx3-ubyte"
        (raw / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes())[:-9])
        file.unlink()
        with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz is corrupted"):
            loader(root=str(root), download=False)

    def test_download_only_when_asked_for(self, idx, monkeypatch):
        loader, root, raw, _ = idx
        content = (raw / "t10k-labels-idx1-ubyte").read_bytes()
        (raw / "t10k-labels-idx1-ubyte").unlink()
        monkeypatch.setattr(
            torchvision.datasets.MNIST, "download", lambda _: (raw / "t10k-labels-idx1-ubyte").write_bytes(content)
        )
        with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte cannot be read"):
            loader(root=str(root), download=False)
        assert loader(root=str(root), download=True).test_labels.tolist() == [7, 8]


def test_a_root_with_images_in_folders_is_recognised(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in label_maps.CIFAR10:
            (tmp_path / part / name).mkdir(parents=True)
    with pytest.raises(UserError, match=r"type dataset\.images=folder") as caught:
        cifar10(root=str(tmp_path), download=False, images="batches")
    assert len(str(caught.value)) < 250, "short"
    (tmp_path / "test/ship").rmdir()  # another tree than that
    with pytest.raises(UserError, match="data_batch_1"):
        cifar10(root=str(tmp_path), download=False, images="batches")
