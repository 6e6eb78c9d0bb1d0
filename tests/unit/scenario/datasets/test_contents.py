"""Trees that look alike are told apart by what they hold, and files that did not change are not read again."""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import fnll  # noqa: F401  (first, so that torchvision can be imported on a CPU-only PyTorch)

# isort: split
import numpy as np
import pytest
import torch
from PIL import Image

from fnll.errors import UserError
from fnll.images import InMemory
from fnll.scenario.datasets import image_folder, mnist
from fnll.scenario.datasets.contents import content_of
from fnll.scenario.datasets.decoding import Decoder, kept_of
from fnll.scenario.datasets.sources import Folder, Mark
from fnll.scenario.scenario import Dataset
from fnll.system import marks

SECOND = 10**9
OLD = 10**18 + 123_456_789  # nanoseconds: in 2001, at no whole second


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_tree(root: Path, value: int) -> Path:
    """Two classes of BMP files, which are all of one size; all times are zero, as an archive sets them."""
    for part in ("train", "test"):
        for label, name in enumerate("ab"):
            file = root / part / name / "0.bmp"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4, 3), value + label, dtype=np.uint8)).save(file)
            os.utime(file, ns=(0, 0))
    return root


def load(root: Path, **settings: object) -> Dataset:
    fixed = {"name": "toys", "size": None, "mean": [0.5] * 3, "std": [0.25] * 3, "padding": 0, "flip": False}
    return image_folder(root=str(root), **{**fixed, "streaming": False, **settings})


def values(data: Dataset) -> list[int]:
    """The first pixel of each training image, after a look at whether the digest is that of these pixels."""
    pixels = data.train.take(torch.arange(2))
    assert data.train.digest == InMemory(pixels).digest
    return pixels[:, 0, 0, 0].tolist()


@pytest.fixture(params=["at once", "remembered"])
def moment(request, monkeypatch):
    """Right after files were written their times tell nothing; later they do. Gives a way to let time pass."""
    if request.param == "remembered":
        monkeypatch.setattr(marks, "SETTLED", 0)
    return lambda: time.sleep(0.05)  # several ticks of the clock that files are dated with


def test_two_trees_with_the_same_names_sizes_and_times(tmp_path, moment):
    first, second = write_tree(tmp_path / "first", 10), write_tree(tmp_path / "second", 70)
    moment()
    assert [values(load(root)) for root in (first, second, first)] == [[10, 11], [70, 71], [10, 11]]
    assert load(first).digest != load(second).digest


def test_another_tree_copied_to_the_same_place_with_its_times(tmp_path, moment):
    here, other = write_tree(tmp_path / "here", 10), write_tree(tmp_path / "other", 70)
    moment()
    assert values(load(here)) == [10, 11]
    shutil.rmtree(here)
    shutil.copytree(other, here)  # as cp -a does
    moment()
    assert values(load(here)) == [70, 71]


def test_another_tree_moved_to_the_same_place(tmp_path, moment):
    here, other = write_tree(tmp_path / "here", 10), write_tree(tmp_path / "other", 70)
    moment()
    assert values(load(here)) == [10, 11]
    here.rename(tmp_path / "away")
    other.rename(here)  # the files' own times of change stay
    assert values(load(here)) == [70, 71]


def test_a_file_changed_in_place_with_its_time_restored(tmp_path, moment):
    here = write_tree(tmp_path / "here", 10)
    moment()
    assert values(load(here)) == [10, 11]
    file, other = here / "train/a/0.bmp", write_tree(tmp_path / "other", 70) / "train/a/0.bmp"
    with file.open("r+b") as opened:
        opened.write(other.read_bytes())
    os.utime(file, ns=(0, 0))
    moment()
    assert values(load(here)) == [70, 11]


def test_a_file_system_that_shows_the_same_of_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr(Mark, "of", classmethod(lambda cls, file: cls(102, 0, 0, 7)))
    here = write_tree(tmp_path / "here", 10)
    assert values(load(here)) == [10, 11]
    write_tree(here, 70)
    assert values(load(here)) == [70, 71]


def test_another_zip_file_in_the_same_place(tmp_path, moment):
    def pack(tree: Path) -> Path:
        with zipfile.ZipFile(tmp_path / "toys.zip", "w") as archive:
            for file in sorted(tree.rglob("*.bmp")):
                archive.writestr(zipfile.ZipInfo(str(file.relative_to(tree))), file.read_bytes())
        os.utime(archive.filename, ns=(0, 0))
        moment()
        return tmp_path / "toys.zip"

    assert values(load(pack(write_tree(tmp_path / "first", 10)))) == [10, 11]
    assert values(load(pack(write_tree(tmp_path / "second", 70)))) == [70, 71]


def test_idx_files_with_the_same_names_sizes_and_times(tmp_path, moment):
    def write(root: Path, value: int) -> Path:
        raw = root / "MNIST/raw"
        raw.mkdir(parents=True)
        for part in ("train", "t10k"):
            (raw / f"{part}-images-idx3-ubyte").write_bytes(
                b"\0\0\x08\x03" + b"\0\0\0\x02\0\0\0\x1c\0\0\0\x1c" + bytes([value]) * 784 + bytes([value + 1]) * 784
            )
            (raw / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x02" + bytes([value % 10, 1]))
        for file in raw.iterdir():
            os.utime(file, ns=(0, 0))
        return root

    first, second = write(tmp_path / "first", 12), write(tmp_path / "second", 73)
    moment()
    for root, pixels, labels in [(first, [12, 13], [2, 1]), (second, [73, 74], [3, 1]), (first, [12, 13], [2, 1])]:
        data = mnist(root=str(root), download=False)
        assert values(data) == pixels
        assert data.labels.tolist() == labels


def test_equal_trees_in_two_places_are_decoded_once(tmp_path, monkeypatch):
    first, second = write_tree(tmp_path / "first", 10), write_tree(tmp_path / "second", 10)
    load(first)

    def refuse(*_):
        raise AssertionError("decoded again")

    monkeypatch.setattr(Decoder, "into", refuse)
    assert values(load(second)) == [10, 11]


@dataclass
class Shelf:
    """Files without a disk; counts what is read."""

    files: dict[str, bytes]
    seen: dict[str, Mark]
    where: str = "/shelf/"
    title: str = "toys"
    advice: str = ""
    reads: list[str] = field(default_factory=list)

    def place(self, name: str) -> str:
        return f"{self.where}{name}"

    def read(self, name: str) -> bytes:
        self.reads.append(name)
        return self.files[name]

    def marks(self, names: Iterable[str]) -> list[Mark]:
        return [self.seen[name] for name in names]

    def children(self, name: str) -> list[str]:
        return sorted(self.files)

    def look(self) -> tuple[str, list[str]]:
        """The content's hash, and what was read for it."""
        self.reads.clear()
        return content_of(self, sorted(self.files)), sorted(self.reads)


def shelf(**changes: Mark) -> Shelf:
    seen = {"a": Mark(3, OLD, OLD, 1), "b": Mark(3, OLD, OLD, 2)}
    return Shelf({"a": b"one", "b": b"two"}, seen | changes)


def test_settled_files_are_read_once():
    files = shelf()
    first, read = files.look()
    assert read == ["a", "b"]
    assert files.look() == (first, [])


@pytest.mark.parametrize(
    "mark",
    [
        Mark(3, OLD, OLD + 1, 1),
        Mark(3, OLD + 1, OLD, 1),
        Mark(3, OLD, OLD, 9),
        Mark(4, OLD, OLD, 1),
    ],
    ids=["change time", "modification time", "inode", "size"],
)
def test_whatever_looks_different_is_read_again(mark):
    files = shelf()
    first, _ = files.look()
    files.seen["a"] = mark
    files.files["a"] = b"ONE"
    second, read = files.look()
    assert "a" in read
    assert second != first


def test_another_place_is_read_by_itself():
    files, other = shelf(), shelf()
    other.where, other.files["a"] = "/other/", b"ONE"
    assert files.look()[0] != other.look()[0]


@pytest.mark.parametrize(
    ("modified", "changed", "trusted"),
    [
        (OLD, OLD, True),
        (0, OLD, True),
        (0, 0, False),  # squashfs, with its times set to zero
        (10**18, 10**18, False),  # sshfs, FAT
        (10**18 + 10**7, 10**18 + 10**7, False),  # exFAT
        (10**18 - SECOND, 10**18, True),  # whole seconds, but real: Lustre, after tar has restored the other time
        (OLD, "now", False),
        (OLD, "ahead", False),  # a clock that is
    ],
    ids=["old", "restored", "squashfs", "sshfs", "exfat", "lustre", "just now", "ahead"],  # the same in every process
)
def test_times_are_trusted_where_they_tell_changes(modified, changed, trusted):
    ago = {"now": 30, "ahead": -3600}  # seconds
    changed = time.time_ns() - ago[changed] * SECOND if changed in ago else changed
    files = shelf(a=Mark(3, modified, changed, 1))
    first, _ = files.look()
    second, read = files.look()
    assert second == first
    assert read == ([] if trusted else ["a"]), "b is known either way"


def test_names_and_order_count():
    one, two = shelf(), shelf()
    two.files = {"a": b"two", "b": b"one"}
    two.where = "/other/"
    assert one.look()[0] != two.look()[0]


def test_a_damaged_note_is_not_believed(cache):
    files = shelf()
    first, _ = files.look()
    (note,) = (cache / "contents").iterdir()
    for text in ("", "nonsense", note.read_text().replace(first, "0" * 32), "\0 " * 9):
        note.write_text(text)
        assert files.look() == (first, ["a", "b"])
        assert files.look() == (first, [])


def test_a_cache_that_cannot_be_written_costs_time_only(cache):
    cache.mkdir()
    (cache / "contents").write_text("in the way")
    files = shelf()
    first, _ = files.look()
    assert files.look() == (first, ["a", "b"])


def test_files_that_change_while_they_are_read_are_not_kept(cache):
    files = shelf()

    def build(folder: Path, source) -> None:
        files.files["b"] = b"new"
        np.save(folder / "x.npy", np.frombuffer(source.read("a") + source.read("b"), dtype=np.uint8))

    with pytest.raises(UserError, match=r"toys: files in /shelf/ changed while they were read; type the command again"):
        kept_of(files, ["a", "b"], "toys", build)
    assert not [path for path in (cache / "images").iterdir() if path.is_dir()]


def test_marks_of_a_folder(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    stat = (tmp_path / "a").stat()
    (mark,) = Folder(str(tmp_path), "toys", "").marks(["a"])
    assert mark == (3, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def test_streamed_trees_with_the_same_names_and_sizes_have_their_own_fingerprints(tmp_path, moment):
    first, second = write_tree(tmp_path / "first", 10), write_tree(tmp_path / "second", 70)
    moment()
    one, two = (load(root, streaming=True).train for root in (first, second))
    assert one.digest != two.digest
    assert load(write_tree(tmp_path / "third", 10), streaming=True).train.digest == one.digest
