"""image_folder: labels, order, the cache, zip files, streaming, and what is said about broken trees."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from pathlib import Path

import fnll  # noqa: F401  (first, so that torchvision can be imported on a CPU-only PyTorch)

# isort: split
import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from PIL import Image

from fnll.errors import UserError
from fnll.images import HorizontalFlip, InMemory, RandomCrop
from fnll.scenario.datasets import image_folder
from fnll.scenario.datasets.decoding import Decoder, decoded
from fnll.scenario.datasets.sources import Folder
from fnll.scenario.datasets.streaming import Streaming

SETTINGS = {
    "name": "toys",
    "size": None,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
    "padding": 1,
    "flip": True,
    "streaming": False,
}


def picture(value: int, height: int = 4, width: int = 4) -> Image.Image:
    generator = np.random.default_rng(value)
    return Image.fromarray(generator.integers(0, 256, (height, width, 3)).astype(np.uint8))


def write_tree(root: Path) -> Path:
    """Two classes; the number of an image is the seed of its pixels."""
    for part, class_name, numbers in [
        ("train", "cat", [0, 1, 2]),
        ("train", "ant", [3, 4]),
        ("test", "ant", [5]),
        ("test", "cat", [6]),
    ]:
        folder = root / part / class_name
        folder.mkdir(parents=True)
        for number in numbers:
            picture(number).save(folder / f"{number:04}.png")
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "toys")


def expected(*numbers: int) -> torch.Tensor:
    return torch.stack([torch.from_numpy(np.array(picture(n))).permute(2, 0, 1) for n in numbers])


def zipped(tree: Path, path: Path, prefix: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(tree.rglob("*.png")):
            archive.write(file, f"{prefix}{file.relative_to(tree)}")
    return path


class TestTree:
    def test_classes_in_alphabetical_order_and_files_by_name(self, tree):
        data = image_folder(root=str(tree), **SETTINGS)
        assert data.name == "toys"
        assert data.class_names == ("ant", "cat")
        assert data.labels.tolist() == [0, 0, 1, 1, 1]
        assert data.test_labels.tolist() == [0, 1]
        assert torch.equal(data.train.take(torch.arange(5)), expected(3, 4, 0, 1, 2))
        assert torch.equal(data.test.take(torch.arange(2)), expected(5, 6))

    def test_official_draws_on_an_order_of_ones_own_are_refused(self, tree):
        """What positions mean is up to whoever sorted the files."""
        assert "without _official" in image_folder(root=str(tree), **SETTINGS).rearranged

    def test_transform(self, tree):
        transform = image_folder(root=str(tree), **SETTINGS).transform
        assert transform.mean == (0.5, 0.5, 0.5)
        assert transform.augmentations == (RandomCrop(1), HorizontalFlip())
        bare = image_folder(root=str(tree), **{**SETTINGS, "padding": 0, "flip": False})
        assert bare.transform.augmentations == ()

    def test_one_folder_down(self, tree, tmp_path):
        (tmp_path / "outer").mkdir()
        tree.rename(tmp_path / "outer" / "toys")
        assert len(image_folder(root=str(tmp_path / "outer"), **SETTINGS).labels) == 5

    @pytest.mark.parametrize("prefix", ["", "toys/"])
    def test_zip_file_gives_the_same_data(self, tree, tmp_path, prefix):
        archive = zipped(tree, tmp_path / "toys.zip", prefix)
        from_zip, from_folder = (image_folder(root=str(root), **SETTINGS) for root in (archive, tree))
        assert from_zip.digest == from_folder.digest
        assert from_zip.class_names == from_folder.class_names

    def test_other_files_and_hidden_folders_are_left_alone(self, tree):
        (tree / "train" / "cat" / "notes.txt").write_text("mine")
        (tree / "train" / ".thumbnails").mkdir()
        assert len(image_folder(root=str(tree), **SETTINGS).labels) == 5

    def test_options_apply(self, tree):
        assert len(image_folder(root=str(tree), subset=2, **SETTINGS).labels) == 2


class TestDecoder:
    @pytest.mark.parametrize(("height", "width"), [(40, 60), (61, 45), (33, 33)])
    @pytest.mark.parametrize(("resize", "crop"), [(33, 32), (33, 33), ((20, 24), None), (None, 16)])
    def test_resizes_and_cuts_as_torchvision(self, tmp_path, height, width, resize, crop):
        image = picture(1, height, width)
        image.save(tmp_path / "a.png")
        theirs = image
        if resize is not None:
            theirs = TF.resize(theirs, [resize] if isinstance(resize, int) else list(resize))
        if crop is not None:
            theirs = TF.center_crop(theirs, [crop, crop])
        ours = Decoder(resize, crop)(Folder(str(tmp_path), "toys", ""), "a.png")
        assert np.array_equal(ours, np.array(theirs).transpose(2, 0, 1))

    def test_grey_images(self, tmp_path):
        Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)).save(tmp_path / "a.png")
        folder = Folder(str(tmp_path), "toys", "")
        assert Decoder(mode="L")(folder, "a.png").shape == (1, 4, 4)
        assert (Decoder()(folder, "a.png") == np.arange(16).reshape(1, 4, 4)).all()


class TestCache:
    def test_the_second_start_decodes_nothing(self, tree, monkeypatch):
        first = image_folder(root=str(tree), **SETTINGS)

        def refuse(*_):
            raise AssertionError("decoded again")

        monkeypatch.setattr(Decoder, "into", refuse)
        assert image_folder(root=str(tree), **SETTINGS).digest == first.digest

    def test_the_digest_is_that_of_the_pixels(self, tree):
        for _ in range(2):
            train = image_folder(root=str(tree), **SETTINGS).train
            assert train.digest == InMemory(expected(3, 4, 0, 1, 2)).digest

    def test_a_changed_file_is_decoded_again(self, tree):
        image_folder(root=str(tree), **SETTINGS)
        file = tree / "train" / "cat" / "0000.png"
        picture(99).save(file)
        os.utime(file, ns=(1, 1))
        data = image_folder(root=str(tree), **SETTINGS)
        assert torch.equal(data.train.take(torch.tensor([2])), expected(99))

    def test_another_size_is_another_entry(self, tree):
        image_folder(root=str(tree), **SETTINGS)
        assert image_folder(root=str(tree), **{**SETTINGS, "size": 2}).train.shape == (3, 2, 2)

    @pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "digests", "delete"])
    def test_a_damaged_entry_is_made_again(self, tree, cache, damage):
        image_folder(root=str(tree), **SETTINGS)
        for entry in [folder for folder in cache.iterdir() if folder.is_dir()]:
            pixels = entry / "pixels.npy"
            content = pixels.read_bytes()
            if damage == "truncate":
                pixels.write_bytes(content[:-7])
            elif damage == "empty":
                pixels.write_bytes(b"")
            elif damage == "flip":
                pixels.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            elif damage == "digests":
                (entry / "digests.json").write_text("{")
            else:
                pixels.unlink()
        data = image_folder(root=str(tree), **SETTINGS)
        assert torch.equal(data.train.take(torch.arange(5)), expected(3, 4, 0, 1, 2))
        assert torch.equal(data.test.take(torch.arange(2)), expected(5, 6))

    def test_writing_to_pixels_does_not_reach_the_cache(self, tree):
        first = image_folder(root=str(tree), **SETTINGS).train
        assert isinstance(first, InMemory)
        first.pixels.zero_()
        assert torch.equal(
            image_folder(root=str(tree), **SETTINGS).train.take(torch.arange(5)), expected(3, 4, 0, 1, 2)
        )

    def test_many_images_keep_their_order(self, tmp_path):
        names = []
        for i in range(600):
            names.append(f"{i}.png")
            Image.fromarray(np.full((1, 1, 3), i % 256, dtype=np.uint8)).save(tmp_path / names[-1])
        images = decoded(Folder(str(tmp_path), "toys", ""), names, Decoder())
        assert images.take(torch.arange(600))[:, 0, 0, 0].tolist() == [i % 256 for i in range(600)]


class TestStreaming:
    @pytest.fixture
    def stream(self, tree) -> Streaming:
        train = image_folder(root=str(tree), **{**SETTINGS, "streaming": True}).train
        assert isinstance(train, Streaming)
        return train

    def test_takes_what_the_decoded_store_takes(self, stream, tree):
        index = torch.tensor([4, 0, 0, 2])
        assert stream.shape == (3, 4, 4)
        assert len(stream) == 5
        assert torch.equal(stream.take(index), expected(2, 3, 3, 0))

    def test_prefetched_images_are_the_ones_asked_for(self, stream, monkeypatch):
        first, second = torch.tensor([0, 1]), torch.tensor([2, 3])
        stream.prefetch(first)
        stream.prefetch(second)
        assert torch.equal(stream.take(second), expected(0, 1))
        assert torch.equal(stream.take(first), expected(3, 4))
        assert torch.equal(stream.take(first), expected(3, 4))  # taken: decoded anew

    def test_a_prefetched_chunk_is_decoded_once(self, stream, monkeypatch):
        decodings = []
        decode = Decoder.into
        monkeypatch.setattr(
            Decoder, "into", lambda self, out, *rest: (decodings.append(len(out)), decode(self, out, *rest))
        )
        stream.prefetch(torch.tensor([0, 1, 2]))
        stream.take(torch.tensor([0, 1, 2]))
        assert sum(decodings) == 3

    def test_hints_that_nobody_follows_are_forgotten(self, stream):
        for i in range(10):
            stream.prefetch(torch.tensor([i % 5]))
        assert len(stream._soon) <= 2

    def test_select(self, stream):
        part = stream.select(torch.tensor([2, 4]))
        assert len(part) == 2
        assert torch.equal(part.take(torch.tensor([1])), expected(2))
        assert part.digest != stream.digest

    def test_digest_sees_names_and_sizes(self, stream, tree):
        other = shutil.copytree(tree, tree.parent / "copy")
        settings = {**SETTINGS, "streaming": True}
        assert image_folder(root=str(other), **settings).train.digest == stream.digest
        with (other / "train" / "cat" / "0000.png").open("ab") as file:
            file.write(b"more")
        assert image_folder(root=str(other), **settings).train.digest != stream.digest

    def test_travels_to_another_process(self, stream):
        stream.prefetch(torch.tensor([0]))
        copy = pickle.loads(pickle.dumps(stream))
        assert copy.digest == stream.digest
        assert torch.equal(copy.take(torch.tensor([0])), expected(3))

    def test_from_a_zip_file(self, tree, tmp_path):
        archive = zipped(tree, tmp_path / "toys.zip", "toys/")
        train = image_folder(root=str(archive), **{**SETTINGS, "streaming": True}).train
        assert torch.equal(train.take(torch.tensor([2])), expected(0))
        assert torch.equal(pickle.loads(pickle.dumps(train)).take(torch.tensor([2])), expected(0))

    def test_a_missing_image_is_named(self, stream, tree):
        (tree / "train" / "cat" / "0001.png").unlink()
        with pytest.raises(UserError, match=r"train/cat/0001\.png"):
            stream.digest  # noqa: B018
        with pytest.raises(UserError, match=r"train/cat/0001\.png"):
            stream.take(torch.tensor([3]))


class TestMistakes:
    def load(self, root: Path, **settings: object) -> None:
        image_folder(root=str(root), **{**SETTINGS, **settings})

    def test_no_such_root(self, tmp_path):
        with pytest.raises(UserError, match=r"no folder or zip file .*nowhere.*dataset\.root"):
            self.load(tmp_path / "nowhere")

    def test_no_tree_there(self, tmp_path):
        (tmp_path / "pictures").mkdir()
        with pytest.raises(UserError, match=r"found: pictures.*train/<class>/\*"):
            self.load(tmp_path)

    def test_two_trees_there(self, tree, tmp_path):
        shutil.copytree(tree, tree.parent / "copy")
        with pytest.raises(UserError, match="lie in copy/, toys/"):
            self.load(tmp_path)

    def test_an_unknown_test_class(self, tree):
        (tree / "test" / "dog").mkdir()
        with pytest.raises(UserError, match="dog"):
            self.load(tree)

    def test_an_empty_class(self, tree):
        (tree / "train" / "dog").mkdir()
        with pytest.raises(UserError, match=r"train/dog holds no image"):
            self.load(tree)

    def test_a_damaged_image(self, tree, cache):
        (tree / "train" / "cat" / "0001.png").write_bytes(b"not an image")
        with pytest.raises(UserError, match=r"train/cat/0001\.png is corrupted"):
            self.load(tree)
        assert [folder for folder in cache.iterdir() if folder.is_dir()] == []

    def test_a_truncated_image(self, tree):
        file = tree / "train" / "cat" / "0001.png"
        file.write_bytes(file.read_bytes()[:-30])
        with pytest.raises(UserError, match=r"train/cat/0001\.png is corrupted"):
            self.load(tree)

    def test_images_of_two_sizes(self, tree):
        picture(1, 5, 7).save(tree / "train" / "cat" / "0001.png")
        with pytest.raises(UserError, match=r"0001\.png has 7 x 5 pixels where others have 4 x 4.*dataset\.size=N"):
            self.load(tree)
        self.load(tree, size=4)

    def test_a_damaged_zip_file(self, tmp_path):
        (tmp_path / "toys.zip").write_bytes(b"PK?")
        with pytest.raises(UserError, match=r"toys\.zip is not a readable zip file"):
            self.load(tmp_path / "toys.zip")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [({"size": 0}, "dataset.size"), ({"padding": -1}, "dataset.padding"), ({"mean": [0.5]}, "dataset.mean")],
    )
    def test_impossible_settings(self, tree, settings, message):
        with pytest.raises(UserError, match=message):
            self.load(tree, **settings)
