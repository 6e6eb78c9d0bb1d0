"""dataset=table and partition=given: what is read, what is held out, and what is refused with row and column."""

from __future__ import annotations

import csv
import zipfile
from dataclasses import replace
from pathlib import Path

import fnll  # noqa: F401

# isort: split
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fnll.errors import UserError
from fnll.scenario import build
from fnll.scenario.card import card
from fnll.scenario.datasets import image_folder, table
from fnll.scenario.datasets.own_rows import guarded, unguarded
from fnll.scenario.file import load as file_load
from fnll.scenario.file import save
from fnll.scenario.noise.models import Native
from fnll.scenario.partition.given import Given
from fnll.scenario.partition.partitions import Iid
from fnll.scenario.scenario import CLEAN, OBSERVED, UNKNOWN

SETTINGS = {
    "root": None, "name": None, "ignore": [], "size": None, "mean": None, "std": None, "padding": 0, "flip": False,
    "holdout": 0.2, "fold": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))


def write(path: Path, rows: list[list[str]], header: tuple[str, ...] = ("file", "label", "client")) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def pictures(folder: Path, names: list[str], size: tuple[int, int] = (4, 4), mode: str = "RGB") -> None:
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((*size, 3), i, dtype=np.uint8)).convert(mode).save(folder / name)


def sites(tmp_path: Path, count: int = 20) -> Path:
    """Two sites of `count` images, labels a and b in turn."""
    names = [f"im/{i}.png" for i in range(2 * count)]
    pictures(tmp_path, names)
    rows = [[name, "ab"[i % 2], "north" if i < count else "a south"] for i, name in enumerate(names)]
    return write(tmp_path / "t.csv", rows)


def load(path: Path, **settings):
    return table(file=str(path), **{**SETTINGS, **settings})


class TestReading:
    def test_rows_become_clients_with_names(self, tmp_path):
        data = load(sites(tmp_path))
        scenario, truth = build(data, Given(), Native(), num_clients=99, seed=0)
        assert scenario.client_names == ("a south", "north")
        assert data.class_names == ("a", "b")
        assert scenario.sizes == (16, 16), "a fifth of each site is held out"
        assert data.names[int(scenario.shards[1][0])].startswith("im/")
        assert all(int(data.names[i][3:-4]) < 20 for i in scenario.shards[1].tolist())
        pixels = data.train.take(scenario.shards[0])[:, 0, 0, 0].tolist()
        assert pixels == [int(data.names[i][3:-4]) for i in scenario.shards[0].tolist()]
        assert truth.labels is None
        assert truth.test_truth == OBSERVED
        assert truth.realised.isnan().all()

    def test_names_stay_away_from_clients_that_are_others(self, tmp_path):
        scenario, _ = build(load(sites(tmp_path)), Iid(1), Native(), num_clients=2, seed=0)
        assert scenario.client_names == ()

    def test_the_card_calls_clients_by_name(self, tmp_path):
        data = load(sites(tmp_path))
        facts = card(*build(data, Given(), Native(), num_clients=1, seed=0), data.class_names)
        assert list(facts.table()["client"]) == ["a south", "north"]
        said = " ".join(remark.text for remark in facts.remarks)
        assert "observed labels, which may be wrong" in said
        assert "clients a south, north" in said, "too few samples for LID are told of clients by name"

    def test_held_out_samples_are_nobodys_and_come_from_every_client_and_class(self, tmp_path):
        data = load(sites(tmp_path))
        scenario, truth = build(data, Given(), Native(), num_clients=1, seed=0)
        held = data.validation
        assert not set(held.tolist()) & set(torch.cat(scenario.shards).tolist())
        cells = {(int(data.owners[i]), int(data.labels[i])) for i in held.tolist()}
        assert cells == {(0, 0), (0, 1), (1, 0), (1, 1)}
        assert torch.equal(truth.test_labels, data.labels[held])
        assert torch.equal(truth.test.take(torch.arange(len(held))), data.train.take(held))

    def test_folds_cover_every_sample_once(self, tmp_path):
        path = sites(tmp_path, 10)
        folds = [load(path, fold=f"{k}/3").validation.tolist() for k in (1, 2, 3)]
        assert sorted(i for fold in folds for i in fold) == list(range(20))

    def test_reviewed_rows_are_the_test_set_and_half_of_them_stay(self, tmp_path):
        path = sites(tmp_path)
        with open(path, newline="") as file:
            rows = list(csv.reader(file))[1:]
        reviewed = [[*row, "b" if i in (0, 2, 4, 6) else ""] for i, row in enumerate(rows)]
        data = load(write(path, reviewed, ("file", "label", "client", "clean_label")))
        assert data.test_truth == CLEAN
        assert data.test_labels.tolist() == [1, 1]
        assert {data.names[i] for i in data.validation.tolist()} < {"im/0.png", "im/2.png", "im/4.png", "im/6.png"}
        assert int((data.reviewed != UNKNOWN).sum()) == 4
        _, truth = build(data, Given(), Native(), num_clients=1, seed=0)
        assert truth.labels is None
        assert truth.reviewed is data.reviewed

    def test_a_table_that_was_reviewed_throughout_has_a_known_truth(self, tmp_path):
        path = sites(tmp_path)
        with open(path, newline="") as file:
            rows = list(csv.reader(file))[1:]
        known = [[*row, "a"] for row in rows]
        data = load(write(path, known, ("file", "label", "client", "clean_label")))
        _, truth = build(data, Given(), Native(), num_clients=1, seed=0)
        assert truth.labels.tolist() == [0] * 40
        assert truth.realised.tolist() == [0.5, 0.5]

    def test_splits(self, tmp_path):
        names = [f"{i}.png" for i in range(6)]
        pictures(tmp_path, names)
        splits = ["train", "", "validation", "test", "test", "train"]
        rows = [[name, "ab"[i % 2], split] for i, (name, split) in enumerate(zip(names, splits, strict=True))]
        data = load(write(tmp_path / "t.csv", rows, ("file", "label", "split")))
        assert data.names == ("0.png", "1.png", "2.png", "5.png")
        assert data.validation.tolist() == [2]
        assert data.test.take(torch.arange(2))[:, 0, 0, 0].tolist() == [3, 4]
        assert data.client_names == ("all",), "one client where the table names none"
        assert data.test_truth == OBSERVED, "nobody said that these are clean"

    def test_images_of_all_sizes_and_modes(self, tmp_path):
        modes = ["RGB", "L", "P", "RGBA", "1", "CMYK", "LA"]
        names = [f"{mode}.{'tif' if mode == 'CMYK' else 'png'}" for mode in modes]
        for i, (name, mode) in enumerate(zip(names, modes, strict=True)):
            pictures(tmp_path, [name], (4 + i, 9), mode)
        Image.fromarray(np.full((5, 5), 65535, dtype=np.uint16)).save(tmp_path / "deep.png")
        Image.fromarray(np.full((5, 5), 30000, dtype=np.uint16)).save(tmp_path / "half.png")
        names += ["deep.png", "half.png"]
        data = load(write(tmp_path / "t.csv", [[n, "ab"[i % 2]] for i, n in enumerate(names)], ("file", "label")))
        assert data.train.shape == (3, 32, 32)
        of = dict(zip(data.names, data.train.take(torch.arange(9))[:, 0, 0, 0].tolist(), strict=True))
        assert (of["deep.png"], of["half.png"]) == (255, 116), "16 bits are scaled, not cut off"

    def test_unicode_spaces_and_numbers(self, tmp_path):
        names = [f"ü {i}.png" for i in range(8)]
        pictures(tmp_path, names)
        rows = [[n, "žlutý kůň" if i % 2 else "два слова", "10" if i < 4 else "9"] for i, n in enumerate(names)]
        data = load(write(tmp_path / "t.csv", rows))
        assert data.class_names == ("žlutý kůň", "два слова")
        assert data.client_names == ("9", "10"), "numbers are sorted as numbers"

    def test_a_zip_file_beside_the_table(self, tmp_path):
        path = sites(tmp_path, 4)
        with zipfile.ZipFile(tmp_path / "im.zip", "w") as archive:
            for file in sorted((tmp_path / "im").iterdir()):
                archive.write(file, f"im/{file.name}")
                file.unlink()
        assert len(load(path, root=str(tmp_path / "im.zip")).names) == 8

    def test_arrays_in_csv_and_parquet(self, tmp_path):
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (10, 4))
        rows = [[" ".join(map(str, row)), "ab"[i % 2]] for i, row in enumerate(pixels)]
        first = load(write(tmp_path / "t.csv", rows, ("x", "label")))
        frame = pd.DataFrame({"x": [row.reshape(2, 2).tolist() for row in pixels], "label": [r[1] for r in rows]})
        frame.to_parquet(tmp_path / "t.parquet")
        second = load(tmp_path / "t.parquet")
        assert first.train.shape == (1, 2, 2)
        assert torch.equal(first.train.take(torch.arange(10)).flatten(1), torch.from_numpy(pixels).to(torch.uint8))
        assert first.digest == second.digest

    @pytest.mark.slow
    def test_a_hundred_thousand_rows(self, tmp_path):
        n = 100_000
        frame = pd.DataFrame({"x": ["0 1 2 3"] * n, "label": [f"c{i % 7}" for i in range(n)]})
        frame["client"] = [f"s{i % 50}" for i in range(n)]
        frame.to_csv(tmp_path / "t.csv", index=False)
        data = load(tmp_path / "t.csv")
        scenario, _ = build(data, Given(), Native(), num_clients=1, seed=0)
        assert sum(scenario.sizes) == 80_000

    def test_one_client_and_one_class_at_a_client(self, tmp_path):
        names = [f"{i}.png" for i in range(12)]
        pictures(tmp_path, names)
        rows = [[n, "a" if i < 6 else "b", "x" if i < 6 else "y"] for i, n in enumerate(names)]
        scenario, _ = build(load(write(tmp_path / "t.csv", rows)), Given(), Native(), num_clients=1, seed=0)
        assert scenario.sizes == (5, 5)
        rows = [[n, "ab"[i % 2], "x"] for i, n in enumerate(names)]
        assert load(write(tmp_path / "u.csv", rows)).client_names == ("x",)


REFUSED = {
    "no such column": (("file", "label", "klient"), [["a.png", "a", "x"]], r"row 1: column 'klient' is unknown"),
    "no label": (("file", "client"), [["a.png", "x"]], r"row 1: the column label is missing"),
    "neither file nor x": (("label",), [["a"]], r"row 1: one column must name the samples.*there is none"),
    "empty label": (("file", "label"), [["a.png", "a"], ["b.png", " "]], r"row 3, column label is empty"),
    "empty client": (("file", "label", "client"), [["a.png", "a", ""]], r"row 2, column client is empty"),
    "empty file": (("file", "label"), [["", "a"]], r"row 2, column file is empty"),
    "twice": (("file", "label"), [["a.png", "a"], ["b.png", "b"], ["./a.png", "a"]],
              r"row 4, column file names ./a.png, which row 2 names too"),
    "leaving": (("file", "label"), [["a.png", "a"], ["x/../../b.png", "b"]], r"row 3, column file leaves"),
    "absolute": (("file", "label"), [["/etc/passwd", "a"]], r"row 2, column file is an absolute path"),
    "windows": (("file", "label"), [["C:\\a.png", "a"]], r"row 2, column file is an absolute path"),
    "backslashes": (("file", "label"), [["..\\a.png", "a"]], r"row 2, column file leaves"),
    "nul": (("file", "label"), [["a\x01.png", "a"]], r"row 2, column file holds a control character"),
    "split": (("file", "label", "split"), [["a.png", "a", "tests"]], r"row 2, column split: 'tests' is none of"),
    "missing": (("file", "label"), [["a.png", "a"], ["gone.png", "b"]], r"row 3, column file: gone.png .*not exist"),
    "broken": (("file", "label"), [["a.png", "a"], ["broken.png", "b"]], r"row 3, column file: broken.png .*corrupted"),
    "one class": (("file", "label"), [["a.png", "a"], ["b.png", "a"]], r"all labels are 'a'"),
    "pixels": (("x", "label"), [["1 2", "a"], ["1 300", "b"]], r"row 3, column x must hold pixel values"),
    "words": (("x", "label"), [["1 2", "a"], ["1 b", "b"]], r"row 3, column x must hold numbers"),
    "lengths": (("x", "label"), [["1 2", "a"], ["1", "b"]], r"row 3, column x holds 1 values where others hold 2"),
    "no rows": (("file", "label"), [], r"a header and no rows"),
    "two label columns": (("file", "label", "label"), [["a.png", "a", "b"]], r"row 1: there are two columns 'label'"),
}  # fmt: skip


class TestRefusals:
    @pytest.mark.parametrize("case", REFUSED)
    def test_row_and_column_are_named(self, case, tmp_path):
        header, rows, message = REFUSED[case]
        pictures(tmp_path, ["a.png", "b.png"])
        (tmp_path / "broken.png").write_bytes((tmp_path / "a.png").read_bytes()[:45])
        with pytest.raises(UserError, match=message):
            load(write(tmp_path / "t.csv", rows, header))

    def test_semicolons_are_told(self, tmp_path):
        (tmp_path / "t.csv").write_text("file;label\na.png;a\n")
        with pytest.raises(UserError, match="separated by commas, not by ';'"):
            load(tmp_path / "t.csv")

    def test_other_encodings_are_told(self, tmp_path):
        (tmp_path / "t.csv").write_bytes("file,label\nä.png,a\n".encode("latin-1"))
        with pytest.raises(UserError, match="not UTF-8"):
            load(tmp_path / "t.csv")

    def test_own_columns_can_be_passed_over(self, tmp_path):
        pictures(tmp_path, names := [f"{i}.png" for i in range(8)])
        path = write(
            tmp_path / "t.csv", [[n, "ab"[i % 2], "61"] for i, n in enumerate(names)], ("file", "label", "age")
        )
        with pytest.raises(UserError, match="column 'age' is unknown"):
            load(path)
        assert len(load(path, ignore=["age"]).names) == 8

    def test_a_missing_member_of_a_zip_is_told_by_its_row(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "im.zip", "w") as archive:
            archive.writestr("other", b"")
        path = write(tmp_path / "t.csv", [["a.png", "a"]], ("file", "label"))
        with pytest.raises(UserError, match=r"row 2, column file: a\.png"):
            load(path, root=str(tmp_path / "im.zip"))

    def test_data_without_clients_cannot_be_given(self, tmp_path):
        data = replace(load(sites(tmp_path, 4)), owners=None)
        with pytest.raises(UserError, match="t names no clients"):
            build(data, Given(), Native(), num_clients=2, seed=0)

    def test_one_sample_per_client_leaves_nothing_to_hold_out(self, tmp_path):
        pictures(tmp_path, ["a.png", "b.png"])
        with pytest.raises(UserError, match="no test set, and too few samples"):
            load(write(tmp_path / "t.csv", [["a.png", "a", "x"], ["b.png", "b", "y"]]))


class TestSpreadsheets:
    @pytest.mark.parametrize("value", ["=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-2+3", "\tx", "'=1"])
    def test_formulas_are_guarded_and_come_back(self, value):
        assert guarded(value) == f"'{value}"
        assert unguarded(guarded(value)) == value

    @pytest.mark.parametrize("value", ["-1", "+3.5", "a-b", "'tis", "", "0"])
    def test_numbers_and_words_are_left_alone(self, value):
        assert guarded(value) == value
        assert unguarded(value) == value


TREE = {
    "name": "own", "size": None, "mean": [0.5] * 3, "std": [0.25] * 3, "padding": 0, "flip": False, "streaming": False
}  # fmt: skip


class TestFolders:
    def test_clients_by_folder(self, tmp_path):
        names = [f"train/{s}/{c}/{i}.png" for s in ("north", "south") for c in ("a", "b") for i in range(5)]
        pictures(tmp_path, names)
        data = image_folder(root=str(tmp_path), **TREE, clean=False)
        scenario, truth = build(data, Given(), Native(), num_clients=1, seed=0)
        assert scenario.client_names == ("north", "south")
        assert scenario.sizes == (8, 8)
        assert truth.labels is None
        assert data.names[0] == "train/north/a/0.png"

    def test_a_tree_without_test_set_of_clean_labels(self, tmp_path):
        pictures(tmp_path, [f"train/{c}/{i}.png" for c in "ab" for i in range(5)])
        data = image_folder(root=str(tmp_path), **TREE)
        assert data.test_truth == CLEAN
        assert not data.native_noise
        assert len(data.test_labels) == 2

    def test_clean_labels_are_not_taken_as_noisy(self, tmp_path):
        pictures(tmp_path, [f"train/{c}/{i}.png" for c in "ab" for i in range(5)])
        data = image_folder(root=str(tmp_path), **TREE)
        with pytest.raises(UserError, match=r"dataset\.clean=false"):
            build(data, Given(), Native(), num_clients=1, seed=0)


def test_a_scenario_file_brings_the_clients_names_back(tmp_path):
    data = load(sites(tmp_path, 5))
    built, truth = build(data, Given(), Native(), num_clients=1, seed=0)
    save(tmp_path / "s.npz", data, built, truth)
    again, about = file_load(data, path=str(tmp_path / "s.npz"))
    assert (again.fingerprint, again.client_names) == (built.fingerprint, built.client_names)
    assert about.test_truth == OBSERVED
