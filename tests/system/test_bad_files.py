"""Bad files of data: each is one sentence with exit code 2, nobody waits, and nothing is left behind."""

from __future__ import annotations

import gzip
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fnll.cli import main

SHORT = ["num_clients=2", "rounds=1", "local.epochs=1", "model=mlp", "model.hidden=[4]", "eval.overlap=false"]
MNIST = ["dataset=mnist", "dataset.root=data"]
TREE = ["dataset=image_folder", "dataset.root=data", "dataset.size=8"]
TABLE = ["dataset=table", "dataset.file=data/t.csv"]
TRAIN, LABELS = "data/MNIST/raw/train-images-idx3-ubyte", "data/MNIST/raw/train-labels-idx1-ubyte"
TEST, TEST_LABELS = "data/MNIST/raw/t10k-images-idx3-ubyte", "data/MNIST/raw/t10k-labels-idx1-ubyte"
Harm = Callable[[], object]
CASES: dict[str, tuple[list[str], str, Harm]] = {}  # name → words, what is said, how the files are harmed


def case(words: list[str], told: str) -> Callable[[Harm], Harm]:
    def register(harm: Harm) -> Harm:
        CASES[harm.__name__] = words, told, harm
        return harm

    return register


def idx(path: str, array: np.ndarray) -> None:
    head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    Path(path).write_bytes(head + array.astype(np.uint8).tobytes())


def cut(path: str) -> None:
    Path(path).write_bytes(Path(path).read_bytes()[:-1])


def nonsense(path: str) -> None:
    Path(path).write_bytes(b"nonsense " * 9)


def pipe(path: str) -> None:
    Path(path).unlink(missing_ok=True)
    os.mkfifo(path)


def loop(path: str) -> None:
    Path(path).unlink(missing_ok=True)
    Path(path).symlink_to(Path(path).name)


def archive(path: str, train: str, test: str) -> None:
    """The tree of images, packed under other names."""
    with zipfile.ZipFile(path, "w") as packed:
        for part, name in (("train", train), ("test", test)):
            for image in sorted(Path(f"data/{part}").rglob("*.png")):
                packed.write(image, name + str(image).removeprefix(f"data/{part}"))


for file in (TRAIN, LABELS, TEST, TEST_LABELS):
    for harm in (cut, nonsense, pipe, loop):
        name = Path(file).name
        CASES[f"{harm.__name__} {name}"] = MNIST, name, lambda harm=harm, file=file: harm(file)  # type: ignore[misc]


@case(MNIST, "train-images-idx3-ubyte")
def a_header_that_lies() -> None:
    Path(TRAIN).write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, 2**31, 2**15, 2**15))


@case(MNIST, "the training label 200, and its classes are 0 to 9")
def a_training_label_of_200() -> None:
    idx(LABELS, np.array([200] + [0, 1] * 9 + [1]))


@case(MNIST, "the test label 200, and its classes are 0 to 9")
def a_test_label_of_200() -> None:
    idx(TEST_LABELS, np.array([200, 1, 0, 1]))


@case(MNIST, "test images of shape (1, 14, 14)")
def images_of_another_size() -> None:
    idx(TEST, np.zeros((4, 14, 14)))


@case(MNIST, "no test image")
def no_test_images() -> None:
    idx(TEST, np.zeros((0, 28, 28)))
    idx(TEST_LABELS, np.zeros(0))


@case(MNIST, "train-images-idx3-ubyte")
def a_packed_file_that_is_cut() -> None:
    content = gzip.compress(Path(TRAIN).read_bytes())
    Path(TRAIN).unlink()
    Path(f"{TRAIN}.gz").write_bytes(content[:-9])


@case(["dataset=cifar10", "dataset.root=data"], "cifar-10-batches-py")
def a_cifar_batch_of_nonsense() -> None:
    Path("data/cifar-10-batches-py").mkdir()
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        nonsense(f"data/cifar-10-batches-py/{name}")


@case(["dataset=cifar10", "dataset.root=data/c.zip"], "c.zip")
def an_archive_that_is_none() -> None:
    nonsense("data/c.zip")


@case(["dataset=cifar10n", "dataset.root=data", "dataset.labels=data/human.npz"], "")
def annotations_of_nonsense() -> None:
    nonsense("data/human.npz")


@case(TREE, "a0.png")
def an_image_of_nonsense() -> None:
    nonsense("data/train/a/a0.png")


@case(TREE, "a0.png")
def an_image_that_is_cut() -> None:
    path = Path("data/train/a/a0.png")
    path.write_bytes(path.read_bytes()[:40])


@case(TREE, "a0.png")
def an_empty_image() -> None:
    Path("data/train/a/a0.png").write_bytes(b"")


@case(TREE, "fewer than two")
def one_class_only() -> None:
    for part in ("train", "test"):
        for path in Path(f"data/{part}/b").iterdir():
            path.unlink()
        Path(f"data/{part}/b").rmdir()


@case([*TREE[:2], "dataset.size=1000000"], "dataset.size must be a whole number from 1 to 8192")
def a_size_of_a_million() -> None:
    """The files are whole; the memory would not last."""


@case(["dataset=synthetic", "dataset.size=1000000"], "a whole number from 1 to 8192")
def made_up_images_of_a_million() -> None:
    """Likewise."""


@case([*TREE[:1], "dataset.root=data/c.zip", "dataset.size=8"], "train/<class>")
def an_archive_that_leads_outside() -> None:
    archive("data/c.zip", "../train", "/test")


@case(TABLE, "t.csv")
def a_table_of_random_bytes() -> None:
    Path("data/t.csv").write_bytes(np.random.RandomState(0).bytes(4000))


@case(["dataset=table", "dataset.file=data/t.parquet"], "t.parquet")
def an_empty_parquet() -> None:
    Path("data/t.parquet").write_bytes(b"PAR1")


@case(TABLE, "t.csv")
def a_table_of_zeros() -> None:
    Path("data/t.csv").write_bytes(bytes(4000))


@case(TABLE, "t.csv")
def an_empty_table() -> None:
    Path("data/t.csv").write_text("")


@case(TABLE, "row 2")
def a_table_that_names_files_elsewhere() -> None:
    Path("data/t.csv").write_text("file,label\n../../etc/passwd,a\n")


@case(["dataset=table", "dataset.file=data/t.parquet"], "t.parquet")
def a_parquet_of_nonsense() -> None:
    nonsense("data/t.parquet")


@case(["scenario=file", "scenario.path=data/s.npz"], "corrupted or not a scenario file")
def a_scenario_of_nonsense() -> None:
    nonsense("data/s.npz")


@case(["scenario=file", "scenario.path=data/s.npz"], "corrupted or not a scenario file")
def a_scenario_of_pickles() -> None:
    np.savez("data/s.npz", observed=np.array([print], dtype=object))


@case(["model=cifar_resnet18", "~model.hidden", "model.pretrained=data/w.pt"], "")
def pretrained_weights_of_nonsense() -> None:
    nonsense("data/w.pt")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny MNIST, a tree of images and a table, all of them whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "data" / "cache"))
    Path("data/MNIST/raw").mkdir(parents=True)
    idx(TRAIN, np.arange(20)[:, None, None] * np.ones((20, 28, 28)))
    idx(LABELS, np.array([0, 1] * 10))
    idx(TEST, np.zeros((4, 28, 28)))
    idx(TEST_LABELS, np.array([0, 1, 0, 1]))
    for part in ("train", "test"):
        for label in "ab":
            Path(f"data/{part}/{label}").mkdir(parents=True)
            for i in range(4):
                Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(f"data/{part}/{label}/{label}{i}.png")
    return tmp_path


def test_what_is_whole_is_taken(here: Path) -> None:
    assert main(["run", *MNIST, *SHORT]) == 0


def test_images_that_do_not_fit_are_refused_before_the_disk_is_full(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fnll.scenario.datasets.decoding.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert main(["run", *TREE, *SHORT]) == 2
    assert "8 images of 8 x 8 pixels need 0.0 GB of the cache" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["data"]


def test_names_in_an_archive_that_lead_outside_are_passed_over(here: Path) -> None:
    archive("data/c.zip", "train", "test")
    with zipfile.ZipFile("data/c.zip", "a") as packed:
        packed.writestr("train/a/../../../a9.png", b"nonsense")
        packed.writestr("/a9.png", b"nonsense")
    assert main(["run", *TREE[:1], "dataset.root=data/c.zip", "dataset.size=8", *SHORT]) == 0
    assert sorted(path.name for path in here.iterdir()) == ["data", "runs"]
    assert not list(here.parent.glob("a9*"))


@pytest.mark.parametrize("name", CASES)
def test_a_bad_file_is_one_sentence(here: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, told, harm = CASES[name]
    harm()
    code = main(["run", *words[:2], *SHORT, *words[2:]])
    said = capsys.readouterr().err.strip().splitlines()
    assert code == 2, said
    assert said[-1].startswith("fnll: ")
    assert len(said[-1]) > 40
    assert told in said[-1]
    assert [path.name for path in here.iterdir()] == ["data"], "something was left behind"
