"""CIFAR-N: human labels meet the right images, from every form they are passed on in, and no file can run code."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import fnll  # noqa: F401  (first, so that torchvision can be imported on a CPU-only PyTorch)

# isort: split
import numpy as np
import pytest
import torch
from PIL import Image

from fnll.errors import UserError
from fnll.images import InMemory, Transform
from fnll.scenario import build
from fnll.scenario.datasets import cifar10n, cifar100n, cifar_n
from fnll.scenario.noise.models import Human
from fnll.scenario.partition.partitions import Iid
from fnll.scenario.scenario import Dataset

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLEAN = np.array([6, 9, 9, 4, 1, 1, 2, 7, 8, 3, 0, 5])
SETS = ("aggre_label", "random_label1", "random_label2", "random_label3", "worse_label")


def human(dtype: str = "int64") -> dict[str, np.ndarray]:
    """Every label set is wrong at another position."""
    labels = {"clean_label": CLEAN.astype(dtype)}
    for i, name in enumerate(SETS):
        labels[name] = CLEAN.astype(dtype)
        labels[name][i] = (CLEAN[i] + 1) % 10
    return labels


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 of twelve images; image i has the value i everywhere. How batches are read is tested elsewhere."""
    images = InMemory(torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1).expand(12, 3, 32, 32).contiguous())
    labels = torch.from_numpy(CLEAN)
    dataset = Dataset(
        "cifar10", images, labels, images, labels, 10, Transform((0.5,) * 3, (0.5,) * 3), class_names=NAMES
    )
    monkeypatch.setattr(cifar_n, "load", lambda *_, **__: dataset)


def load(root: Path, labels: Path | None = None, images: str = "batches", download: bool = False, **options) -> Dataset:
    return cifar10n(
        root=str(root), download=download, images=images, labels=None if labels is None else str(labels), **options
    )


def check(data: Dataset) -> None:
    assert data.labels.tolist() == CLEAN.tolist()
    assert data.rearranged is None
    assert list(data.annotations) == ["aggre", "random1", "random2", "random3", "worse"]
    for i, labels in enumerate(data.annotations.values()):
        assert labels.dtype == torch.int64
        assert (labels != data.labels).nonzero().flatten().tolist() == [i]


def numpy_1(path: Path, content: dict[str, np.ndarray]) -> None:
    """A file as published: pickled when numpy's internals had another name."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with zipfile.ZipFile(buffer) as new, zipfile.ZipFile(path, "w") as old:
        for item in new.infolist():
            old.writestr(item, new.read(item).replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    with zipfile.ZipFile(path) as written:
        pickled = written.read(next(name for name in written.namelist() if name.endswith("data.pkl")))
    assert b"numpy.core.multiarray" in pickled
    assert b"numpy._core" not in pickled


@pytest.mark.usefixtures("batches")
class TestForms:
    @pytest.mark.parametrize("dtype", ["int64", "uint8", "int32"])
    def test_pt(self, tmp_path, dtype):
        torch.save(human(dtype), tmp_path / "CIFAR-10_human.pt")
        check(load(tmp_path))

    def test_pt_of_an_older_numpy(self, tmp_path):
        numpy_1(tmp_path / "CIFAR-10_human.pt", human())
        check(load(tmp_path))

    def test_pt_with_tensors(self, tmp_path):
        torch.save({name: torch.from_numpy(labels) for name, labels in human().items()}, tmp_path / "mine.pt")
        check(load(tmp_path, tmp_path / "mine.pt"))

    @pytest.mark.parametrize("name", ["CIFAR-10_human.npz", "cifar10n-human-labels.npz"])
    def test_npz_beside_the_images(self, tmp_path, name):
        np.savez(tmp_path / name, **human("uint8"))
        check(load(tmp_path))

    def test_npz_elsewhere(self, tmp_path):
        np.savez(tmp_path / "mine.npz", **human("uint8"))
        check(load(tmp_path / "data", tmp_path / "mine.npz"))

    def test_options_keep_annotations_with_their_images(self, tmp_path):
        np.savez(tmp_path / "mine.npz", **human())
        data = load(tmp_path, tmp_path / "mine.npz", subset=5)
        values = data.train.take(torch.arange(5))[:, 0, 0, 0].long()
        assert len(data.annotations) == len(SETS)
        for i, labels in enumerate(data.annotations.values()):
            assert torch.equal(labels != data.labels, values == i)


class TestFolder:
    """Files are sorted by class; annotations are in the published order. Image i is grey with value 20 i."""

    @pytest.fixture
    def root(self, tmp_path) -> Path:
        for part in ("train", "test"):
            seen = dict.fromkeys(range(10), 0)
            for i, label in enumerate(CLEAN.tolist()):
                folder = tmp_path / "tree" / part / NAMES[label]
                folder.mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(np.full((32, 32, 3), 20 * i, dtype=np.uint8))
                image.save(folder / f"{seen[label]:04}.jpg", quality=100)
                seen[label] += 1
        np.savez(tmp_path / "labels.npz", **human("uint8"))
        return tmp_path / "tree"

    def test_annotations_attach_to_the_right_images(self, root):
        data = load(root, root.parent / "labels.npz", "folder")
        assert data.name == "CIFAR-10N (JPEG copy)"
        assert data.train.take(torch.arange(12))[:, 0, 16, 16].tolist() == [20 * i for i in range(12)]
        check(data)

    def test_the_second_start_reads_the_cache(self, root):
        first = load(root, root.parent / "labels.npz", "folder")
        assert load(root, root.parent / "labels.npz", "folder").digest == first.digest

    def test_beside_a_zip_file(self, root):
        with zipfile.ZipFile(root.parent / "tree.zip", "w") as archive:
            for file in root.rglob("*.jpg"):
                archive.write(file, file.relative_to(root))
        np.savez(root.parent / "cifar10n-human-labels.npz", **human("uint8"))
        check(load(root.parent / "tree.zip", images="folder"))

    def test_batches_yield_the_human_labels_of_their_images(self, root):
        """A rival's CIFAR-N runs train on clean labels; here the image in a batch is recognised by its value."""
        data = load(root, root.parent / "labels.npz", "folder")
        scenario, truth = build(data, Iid(min_size=1), Human("worse"), num_clients=3, seed=0)
        worse = data.annotations["worse"]
        seen = []
        for k in range(3):
            client = scenario.client(k, t=0, memory={}, labels=None, seed=k, device=torch.device("cpu"))
            for batch in client.batches(2, 1):
                pixel = batch.x[:, 0, 16, 16] * data.transform.std[0] + data.transform.mean[0]
                which = (pixel * 255 / 20).round().long()
                assert torch.equal(batch.y, worse[which])
                seen += which.tolist()
        assert sorted(seen) == list(range(12))
        assert truth.labels is not None
        assert truth.labels.tolist() == CLEAN.tolist()

    def test_an_incomplete_tree_is_refused(self, root):
        (root / "train" / "truck" / "0001.jpg").unlink()
        np.savez(root.parent / "short.npz", **{name: labels[1:] for name, labels in human().items()})
        with pytest.raises(UserError, match=r"clean_label .* must hold 11 whole numbers"):
            load(root, root.parent / "labels.npz", "folder")
        with pytest.raises(UserError, match=r"class frog holds 1 training images and .*short\.npz has 0 labels"):
            load(root, root.parent / "short.npz", "folder")


@pytest.mark.usefixtures("batches")
class TestMistakes:
    def test_no_label_file(self, tmp_path):
        with pytest.raises(UserError, match=r"CIFAR-10N: .*CIFAR-10_human\.pt cannot be read.*dataset\.labels=FILE"):
            load(tmp_path)

    def test_no_such_label_file(self, tmp_path):
        with pytest.raises(UserError, match=r"no file .*nowhere\.npz \(dataset\.labels="):
            load(tmp_path, tmp_path / "nowhere.npz")

    def test_download(self, tmp_path, monkeypatch):
        def fetch(url: str, root: str, filename: str) -> None:
            assert url.endswith("CIFAR-10_human.pt")
            torch.save(human(), Path(root) / filename)

        monkeypatch.setattr(cifar_n, "download_url", fetch)
        check(load(tmp_path / "new", download=True))

    @pytest.mark.parametrize("name", ["mine.pt", "mine.npz"])
    @pytest.mark.parametrize("content", [b"", b"no archive"])
    def test_damaged(self, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name} is corrupted or not a label file"):
            load(tmp_path, tmp_path / name)

    def test_truncated(self, tmp_path):
        torch.save(human(), tmp_path / "mine.pt")
        (tmp_path / "mine.pt").write_bytes((tmp_path / "mine.pt").read_bytes()[:-100])
        with pytest.raises(UserError, match=r"mine\.pt is corrupted"):
            load(tmp_path, tmp_path / "mine.pt")

    def test_a_pickle_that_would_run_code_is_refused(self, tmp_path):
        class Evil:
            def __reduce__(self) -> tuple:
                return os.mkdir, (str(tmp_path / "broken_in"),)

        torch.save({**human(), "worse_label": Evil()}, tmp_path / "mine.pt")
        with pytest.raises(UserError, match=r"mine\.pt is corrupted or not a label file"):
            load(tmp_path, tmp_path / "mine.pt")
        assert not (tmp_path / "broken_in").exists()

    def test_pickled_objects_in_an_npz_are_refused(self, tmp_path):
        np.savez(tmp_path / "mine.npz", **{**human(), "worse_label": np.array([{}], dtype=object)})
        with pytest.raises(UserError, match=r"mine\.npz is corrupted"):
            load(tmp_path, tmp_path / "mine.npz")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"worse_label": None}, "has no worse_label"),
            ({"worse_label": CLEAN[:-1]}, r"worse_label .* must hold 12 whole numbers.*\(11,\)"),
            ({"worse_label": CLEAN.astype(float)}, "worse_label .* whole numbers.*float64"),
            ({"random_label2": np.where(CLEAN == 9, 10, CLEAN)}, "random_label2 .* from 0 to 10.* 10 classes"),
            ({"random_label2": CLEAN - 1}, "from -1 to 8"),
            ({"clean_label": np.roll(CLEAN, 1)}, r"clean_label .* disagrees .* first at position 0"),
        ],
    )
    def test_labels_that_cannot_be_are_refused(self, tmp_path, change, message):
        content = {name: labels for name, labels in {**human(), **change}.items() if labels is not None}
        np.savez(tmp_path / "mine.npz", **content)
        with pytest.raises(UserError, match=message):
            load(tmp_path, tmp_path / "mine.npz")

    def test_not_a_dictionary(self, tmp_path):
        torch.save([1, 2], tmp_path / "mine.pt")
        with pytest.raises(UserError, match="has no clean_label"):
            load(tmp_path, tmp_path / "mine.pt")


def test_hundred_classes(tmp_path, monkeypatch):
    """CIFAR-100N has one label set; the coarse labels in its file are left alone."""
    images = InMemory(torch.zeros(3, 3, 32, 32, dtype=torch.uint8))
    labels = torch.tensor([99, 5, 42])
    dataset = Dataset("cifar100", images, labels, images, labels, 100, Transform((0.5,) * 3, (0.5,) * 3))
    monkeypatch.setattr(cifar_n, "load", lambda *_, **__: dataset)
    clean = labels.numpy()
    content = {"clean_label": clean, "noisy_label": np.array([99, 6, 42]), "noisy_coarse_label": np.array([19, 0, 1])}
    torch.save(content, tmp_path / "CIFAR-100_human.pt")
    data = cifar100n(root=str(tmp_path), download=False, images="batches", labels=None)
    assert data.name == "cifar100n"
    assert {name: given.tolist() for name, given in data.annotations.items()} == {"noisy": [99, 6, 42]}
