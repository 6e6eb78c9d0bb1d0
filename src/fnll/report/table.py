"""A table as a value: text with marks, ready for any format, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fnll.harness.metrics import metric_of


@dataclass(frozen=True)
class Entry:
    """What one cell of a table says."""

    text: str
    best: bool = False
    tied: bool = False
    missing: bool = False  # no number: the text says why in a word, the hint in full
    twin: bool = False  # the number of another row
    hint: str = ""


@dataclass(frozen=True)
class Row:
    """A line of a table; `apart` sets it off from those that compete."""

    label: str
    entries: tuple[Entry, ...]
    apart: bool = False


@dataclass(frozen=True)
class Table:
    """A titled table with its footnotes; `data` holds the numbers in tidy form, with the run ids behind each."""

    name: str  # file name
    title: str
    columns: tuple[str, ...]  # the first is over the row labels
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    data: pd.DataFrame = field(default_factory=pd.DataFrame)
    words: bool = False  # columns of words, which align left, rather than of numbers
    caption: str = ""  # what was compared, in a line
    caveats: tuple[str, ...] = ()  # notes that hold for the runs, whichever table shows them
    label: str = ""  # of LaTeX; `tab:` and the file name without one

    @property
    def footnotes(self) -> tuple[str, ...]:
        """All notes, those of the table itself first."""
        return self.notes + self.caveats


def number(value: float, metric: str) -> str:
    """A value of `metric` as tables print it: fractions in per cent."""
    return f"{100 * value:.2f}" if metric_of(metric).is_fraction else f"{value:.4g}"


def spread(std: float, metric: str) -> str:
    """` ± std`, or nothing where one seed has none."""
    return "" if np.isnan(std) else f" ± {number(std, metric) if metric_of(metric).is_fraction else f'{std:.2g}'}"


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, and a minus sign that is one."""
    return f"{value:+.{digits}f}".replace("-", "−")


def listing(name: str, title: str, columns: Sequence[str], rows: Iterable[Row], *notes: str) -> Table:
    """A table of words; its tidy form is itself."""
    lines = tuple(rows)
    data = pd.DataFrame([(row.label, *(e.text for e in row.entries)) for row in lines], columns=list(columns))
    return Table(name, title, tuple(columns), lines, notes, data, words=True)


def texts(label: str, *values: str, apart: bool = False) -> Row:
    """A row of plain texts."""
    return Row(label, tuple(map(Entry, values)), apart)
