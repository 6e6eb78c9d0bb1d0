"""Text files that say which image has which label."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fnll.errors import UserError
from fnll.scenario.datasets.sources import Folder


def lines(folder: Folder, name: str) -> list[str]:
    """The lines of a list of file names."""
    found = [line.strip() for line in _text(folder, name).splitlines() if line.strip()]
    if not found:
        raise UserError(f"{folder.title}: {folder.place(name)} is empty; {folder.advice}")
    return found


def labelled(folder: Folder, name: str, num_classes: int | None = None) -> pd.Series:
    """Labels by file name, from lines `name label` in their order; labels must lie below `num_classes` if given."""
    rows = [line.rsplit(maxsplit=1) for line in lines(folder, name)]
    wrong = next((i for i, row in enumerate(rows) if len(row) != 2 or not row[1].isdigit()), None)
    if wrong is not None:
        raise UserError(
            f"{folder.title}: line {wrong + 1} of {folder.place(name)} must be a file name and a label, separated by a "
            f"space, got {' '.join(rows[wrong])[:80]!r}; {folder.advice}"
        )
    labels = pd.Series(np.array([int(row[1]) for row in rows]), index=[row[0] for row in rows])
    if num_classes is not None and labels.max() >= num_classes:
        raise UserError(
            f"{folder.title}: {folder.place(name)} has label {labels.max()} for {labels.idxmax()}, and there are "
            f"{num_classes} classes; {folder.advice}"
        )
    return labels


def one_hot(folder: Folder, name: str, key: str, class_names: Sequence[str]) -> pd.Series:
    """Labels by identifier (column `key`), from a CSV file with one column of 0 and 1 per class."""
    try:
        table = pd.read_csv(io.StringIO(_text(folder, name)))
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"{folder.title}: {folder.place(name)} is not a CSV file ({error}); {folder.advice}") from error
    absent = [column for column in (key, *class_names) if column not in table]
    if absent:
        raise UserError(
            f"{folder.title}: {folder.place(name)} has no column {', '.join(absent)}; it needs {key} and one column "
            f"of 0 and 1 per class"
        )
    marks = table[list(class_names)].to_numpy()
    wrong = np.flatnonzero((marks == 1).sum(1) != 1)
    if len(wrong):
        raise UserError(
            f"{folder.title}: {table[key][wrong[0]]} in {folder.place(name)} has {(marks[wrong[0]] == 1).sum()} of the "
            f"classes {', '.join(class_names)}, and every image must have one; {len(wrong)} rows are like this"
        )
    return pd.Series(marks.argmax(1), index=table[key].astype(str))


def _text(folder: Folder, name: str) -> str:
    try:
        return folder.read(name).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{folder.title}: {folder.place(name)} is no text file ({error}); {folder.advice}") from error
