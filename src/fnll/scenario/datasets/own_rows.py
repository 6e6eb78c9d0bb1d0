"""A table that says which sample has which label and whose it is: read from CSV or Parquet, and checked.

Whatever is wrong is told with row and column, as a spreadsheet counts them: the header of a CSV file is row 1.
"""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fnll.errors import UserError, nearest

COLUMNS = ("file", "x", "label", "client", "split", "clean_label")
SPLITS = ("train", "validation", "test")
LONGEST = 500  # characters of a label or of a client's name
FORMULA = re.compile(r"^'*[=+\-@\t\r]")  # what spreadsheets take for the beginning of a formula, guarded or not
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
LINE_BREAKS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")  # in a name or a label: an accident, or worse


@dataclass(frozen=True)
class Rows:
    """The columns of a table, all of one length."""

    files: tuple[str, ...]  # normalised names; row numbers where there are arrays
    labels: tuple[str, ...]
    clients: tuple[str, ...]  # empty without the column
    splits: tuple[str, ...]
    clean: tuple[str, ...]  # "" where nobody reviewed the label
    arrays: np.ndarray | None  # (n, values) uint8 instead of image files
    place: Callable[[int, str], str]  # where row i is, in words

    def __len__(self) -> int:
        return len(self.labels)


def read_frame(path: Path, name: str = "dataset.file") -> pd.DataFrame:
    """The table as it is, every cell a text (arrays in Parquet stay arrays); `name` is the setting that gave it."""
    if not path.is_file():
        raise UserError(
            f"there is no file {path}; type {name}=FILE.csv (or .parquet), and dataset.root=DIR if its images "
            "do not lie beside it"
        )
    try:
        if path.suffix.lower() == ".parquet":
            return _parquet(path)
        _require_comma(path)
        return pd.read_csv(path, dtype=str, keep_default_na=False, na_filter=False, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error}); save it as CSV UTF-8") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OSError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a table: {' '.join(str(error).split())}") from None


def read_rows(path: Path, ignore: Sequence[str] = ()) -> Rows:
    """The rows of the table at `path`, checked but for what only the images' folder can tell."""
    frame = read_frame(path)
    _require_columns(path, frame, ignore)
    if frame.empty:
        raise UserError(f"{path} has a header and no rows")
    first = 1 if path.suffix.lower() == ".parquet" else 2

    def place(i: int, column: str) -> str:
        return f"{path}, row {i + first}, column {column}"

    def column(name: str, default: str) -> tuple[str, ...]:
        return tuple(unguarded(value) for value in frame[name]) if name in frame else (default,) * len(frame)

    labels, clients = column("label", ""), column("client", "") if "client" in frame else ()
    clean, splits = column("clean_label", ""), tuple(value or "train" for value in column("split", "train"))
    for name, values in (("label", labels), ("client", clients), ("clean_label", clean)):
        _require_texts(values, name, place, needed=name != "clean_label")
    for i in (i for i, split in enumerate(splits) if split not in SPLITS):
        raise UserError(f"{place(i, 'split')}: {splits[i]!r} is none of {', '.join(SPLITS)}")
    if "x" in frame:
        files, arrays = tuple(str(i + first) for i in range(len(frame))), _arrays(frame["x"], place)
    else:
        files, arrays = _names(column("file", ""), place), None
    return Rows(files, labels, clients, splits, clean, arrays, place)


def guarded(value: object) -> str:
    """`value` as a cell that no spreadsheet takes for a formula; numbers stay as they are."""
    text = str(value)
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


def unguarded(value: str) -> str:
    """A cell without the mark that `guarded` put in front."""
    return value[1:] if value.startswith("'") and FORMULA.match(value[1:]) else value


def _parquet(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except ImportError:
        raise UserError(
            f"{path} is a Parquet file, and reading one needs pyarrow; type pip install 'fnll[parquet]'"
        ) from None
    texts = [name for name in frame if name != "x"]
    return frame.assign(**{str(name): frame[name].map(_text) for name in texts}).rename(columns=str)


def _text(value: Any) -> str:
    return "" if value is None or (isinstance(value, float) and np.isnan(value)) else str(value)


def _require_comma(path: Path) -> None:
    with open(path, encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file), [])
    for sign in (";", "\t", "|"):
        if len(header) == 1 and sign in header[0]:
            raise UserError(f"{path}, row 1: columns must be separated by commas, not by {sign!r}")
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        raise UserError(f"{path}, row 1: there are two columns {doubled[0]!r}")


def _require_columns(path: Path, frame: pd.DataFrame, ignore: Sequence[str]) -> None:
    for name in (str(name) for name in frame if name not in COLUMNS and name not in ignore):
        raise UserError(
            f"{path}, row 1: column {name!r} is unknown ({nearest(name, COLUMNS)}); the columns are file (or x), label "
            "and optionally client, split, clean_label. Type 'dataset.ignore=[NAME,...]' for columns of your own"
        )
    if "label" not in frame:
        raise UserError(f"{path}, row 1: the column label is missing")
    if ("file" in frame) == ("x" in frame):
        raise UserError(
            f"{path}, row 1: one column must name the samples, file (images) or x (arrays of pixel values); "
            f"there {'are both' if 'x' in frame else 'is none'}"
        )


def _require_texts(values: Sequence[str], name: str, place: Callable[[int, str], str], *, needed: bool) -> None:
    for i, value in enumerate(values):
        if needed and not value.strip():
            raise UserError(f"{place(i, name)} is empty; fill it in, or take the row out")
        if len(value) > LONGEST or LINE_BREAKS.search(value):
            raise UserError(f"{place(i, name)} holds a line break, a control character, or over {LONGEST} characters")


def _names(values: Sequence[str], place: Callable[[int, str], str]) -> tuple[str, ...]:
    """File names below the images' folder, in one form; each once."""
    seen: dict[str, int] = {}
    for i, value in enumerate(values):
        if not value.strip():
            raise UserError(f"{place(i, 'file')} is empty; fill it in, or take the row out")
        name = posixpath.normpath(value)
        if LINE_BREAKS.search(value):
            raise UserError(f"{place(i, 'file')} holds a control character: {value!r}")
        if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:[\\/]", name):
            raise UserError(f"{place(i, 'file')} is an absolute path: {value}; name files from the images' folder on")
        if name in ("..", ".") or name.startswith("../") or ".." in re.split(r"[\\/]", name):
            raise UserError(f"{place(i, 'file')} leaves the images' folder: {value}")
        if name in seen:
            raise UserError(f"{place(i, 'file')} names {value}, which row {_number(place(seen[name], ''))} names too")
        seen[name] = i
    return tuple(seen)


def _number(place: str) -> str:
    return place.rsplit("row ", 1)[1].split(",")[0]


def _arrays(column: pd.Series, place: Callable[[int, str], str]) -> np.ndarray:
    """Arrays of pixel values: lists in Parquet, numbers separated by spaces in CSV."""
    rows: list[np.ndarray] = []
    for i, value in enumerate(column):
        try:
            parts = value.split() if isinstance(value, str) else np.concatenate([np.ravel(part) for part in value])
            numbers = np.asarray(parts, dtype=np.float64)
        except (ValueError, TypeError):
            raise UserError(f"{place(i, 'x')} must hold numbers (in CSV separated by spaces)") from None
        if not len(numbers) or not np.all((numbers >= 0) & (numbers <= 255) & (numbers == np.floor(numbers))):
            raise UserError(f"{place(i, 'x')} must hold pixel values, whole numbers from 0 to 255")
        if rows and len(numbers) != len(rows[0]):
            raise UserError(f"{place(i, 'x')} holds {len(numbers)} values where others hold {len(rows[0])}")
        rows.append(numbers.astype(np.uint8))
    return np.stack(rows)
