"""Your own samples: a table of files (or arrays), labels and clients, with the images in a folder or a zip file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import torch

from fnll.errors import UserError, require
from fnll.images import Augmentation, HorizontalFlip, Images, InMemory, RandomCrop, Transform
from fnll.scenario.datasets.decoding import Decoder, UnequalError, decoded
from fnll.scenario.datasets.options import HeldOut, Options, Padding, Shared, Size, Spread
from fnll.scenario.datasets.own import Held, Own, federation
from fnll.scenario.datasets.own_rows import Rows, read_rows
from fnll.scenario.datasets.sources import Source, source_at
from fnll.scenario.scenario import Dataset
from fnll.settings import checked
from fnll.system.marks import Mark

SIDE = 32  # of images of different sizes, unless dataset.size says otherwise
GREY, SPREAD = 0.5, 0.25  # of every channel, unless dataset.mean and dataset.std say otherwise
ADVICE = "correct the row, or type dataset.root=DIR for the folder (or zip file) that the names start from"


@checked("dataset")
def table(
    *,
    file: str,
    root: str | None,
    name: str | None,
    ignore: Sequence[str],
    size: Size | None,
    mean: Sequence[float] | None,
    std: Sequence[Spread] | None,
    padding: Padding,
    flip: bool,
    holdout: HeldOut,
    fold: str | None,
    **options: Unpack[Shared],
) -> Dataset:
    """Samples of a table. Labels are taken as they are: noisy, and nobody knows how much but for `clean_label`."""
    chosen = Options(**options)
    path = Path(file).expanduser()
    rows = read_rows(path, ignore)
    require(
        chosen.validation is None,
        "dataset.validation is for data sets with a test set of their own; type dataset.holdout=0.2, or mark rows "
        "with split=validation",
    )
    images = _arrays(rows) if rows.arrays is not None else _pictures(rows, path, root, size)
    own = Own(name or path.stem, rows.files, rows.labels, rows.clients, rows.splits, rows.clean, trusted=False)
    transform = transform_of(images, mean, std, padding, flip)
    return chosen.apply(federation(own, images, transform, Held(holdout, fold, chosen.seed)))


def transform_of(
    images: Images, mean: Sequence[float] | None, std: Sequence[float] | None, padding: int, flip: bool
) -> Transform:
    """How these images become network input."""
    channels = images.shape[0]
    centre = tuple(mean) if mean is not None else (GREY,) * channels
    spread = tuple(std) if std is not None else (SPREAD,) * channels
    require(
        len(centre) == len(spread) == channels,
        f"dataset.mean and dataset.std need {channels} numbers each, one per channel, got {mean} and {std}",
    )
    random: list[Augmentation] = [RandomCrop(padding)] if padding else []
    return Transform(centre, spread, (*random, HorizontalFlip()) if flip else tuple(random))


def _arrays(rows: Rows) -> InMemory:
    """Rows of pixel values: squares where their number allows it, else one line."""
    assert rows.arrays is not None
    side = math.isqrt(rows.arrays.shape[1])
    shape = (1, side, side) if side * side == rows.arrays.shape[1] else (1, 1, rows.arrays.shape[1])
    return InMemory(torch.from_numpy(rows.arrays.reshape(-1, *shape)))


def _pictures(rows: Rows, path: Path, root: str | None, size: int | None) -> InMemory:
    source = source_at(str(path.absolute().parent) if root is None else root, "dataset=table", ADVICE)
    listed = Listed(source, rows)
    try:
        return decoded(listed, rows.files, Decoder(resize=None if size is None else (size, size)))
    except UnequalError:
        return decoded(listed, rows.files, Decoder(resize=(SIDE, SIDE)))


@dataclass(frozen=True)
class Listed:
    """A source whose files are called by their rows in the table."""

    source: Source
    rows: Rows

    @property
    def title(self) -> str:
        return self.source.title

    @property
    def advice(self) -> str:
        return self.source.advice

    def place(self, name: str) -> str:
        if not name:
            return self.source.place("")
        return f"{self.rows.place(self.rows.files.index(name), 'file')}: {name} (looked for {self.source.place(name)})"

    def read(self, name: str) -> bytes:
        try:
            return self.source.read(name)
        except UserError as error:
            raise UserError(f"{self.place(name)} cannot be read; {self.advice}") from error

    def marks(self, names: Iterable[str]) -> list[Mark]:
        names = list(names)
        try:
            return self.source.marks(names)
        except UserError:
            for name in names:
                try:
                    self.source.marks([name])
                except UserError:
                    raise UserError(f"{self.place(name)} does not exist; {self.advice}") from None
            raise

    def children(self, name: str) -> list[str]:
        return self.source.children(name)
