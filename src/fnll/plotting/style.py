"""Paper-ready defaults, and figures that touch no global state of matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fnll.system.files import inside, make_folder, write_file

RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "text.parse_math": False,  # names may hold dollars
    "pdf.fonttype": 42,  # real fonts: text in a paper's figure stays text
    "svg.hashsalt": "fnll",  # the same figure twice is the same file twice
}
FORMATS = ("svg", "png")
DPI = 160
LETTER = 0.075  # inches of a 9 point letter
JOINED = " · "  # between the parts of a scenario's name


@contextmanager
def styled() -> Iterator[None]:
    """The defaults above, inside the block only."""
    with mpl.rc_context(RC):
        yield


def panels(
    count: int, columns: int = 3, width: float = 3.1, height: float = 2.4, *, share: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes in rows of at most `columns`; `share` gives them one scale."""
    columns = max(1, min(columns, count))
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    for spare in axes.flat[count:]:
        spare.set_visible(False)
    if share and count % columns:  # some panels of the row above the last have none below: label that whole row
        for above in axes.flat[max(0, rows - 2) * columns : count]:
            above.xaxis.set_tick_params(labelbottom=True)
    return figure, list(np.asarray(axes).flat[:count])


def title(ax: Axes, text: str) -> None:
    """A panel's title in as many lines as its width asks for."""
    figure, place = ax.get_figure(root=True), ax.get_subplotspec()
    assert figure is not None
    assert place is not None
    width = figure.get_figwidth() / place.get_gridspec().ncols
    ax.set_title(in_lines(text, int(width / LETTER) - 3))  # centred over the axes, which are off the middle


def in_lines(text: str, letters: int) -> str:
    """`text` in lines of at most so many letters, broken at ` · ` before it is broken at spaces."""
    lines = [""]
    for part in text.split(JOINED):
        joined = JOINED.join(filter(None, (lines[-1], part)))
        lines[-1:] = [joined] if len(joined) <= letters else [*filter(None, lines[-1:]), *wrap(part, letters)]
    return "\n".join(lines)


def legend_below(figure: Figure, axes: Sequence[Axes], most: int = 6) -> None:
    """One legend for all panels, below them, in as many lines as the figure's width asks for."""
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if entries:
        lines = _lines(list(entries), figure.get_figwidth(), most)
        figure.set_figheight(figure.get_figheight() + 0.2 * (lines - 1))  # the panels keep their height
        columns = -(-len(entries) // lines)
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def _lines(labels: list[str], width: float, most: int) -> int:
    """Lines of a legend, filled column by column, that is at most `width` inches wide and `most` columns."""
    inches = [0.6 + LETTER * len(label) for label in labels]  # handle and gaps, and letters
    for lines in range(-(-len(labels) // most), len(labels)):
        if sum(max(inches[i : i + lines]) for i in range(0, len(labels), lines)) <= width:
            return lines
    return len(labels)


def legend_above(ax: Axes) -> None:
    """The legend in one line on top of a wide panel, where it hides nothing."""
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(ax.get_legend_handles_labels()[1]), fontsize=8)


def whole_numbers(*axes: Axis) -> None:
    """Ticks at whole numbers: rounds, clients and classes have no halves."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator(nbins="auto", integer=True))


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `figure` as `stem.svg` and `stem.png`, or in other formats; the same figure gives the same bytes."""
    folder = make_folder(stem.parent)
    paths = []
    for suffix in formats:
        path = inside(folder, f"{stem.name}.{suffix}")
        write_file(path, encode(figure, suffix))
        paths.append(path)
    return paths


def encode(figure: Figure, suffix: str) -> bytes:
    """`figure` as the bytes of a file, without a date in it."""
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format=suffix, dpi=DPI, metadata=dates[suffix])
        figure.set_layout_engine("none")  # laid out by now: further formats cost half
    return buffer.getvalue()
