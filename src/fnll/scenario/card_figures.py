"""Figures of a scenario card. Each function returns a matplotlib `Figure`; `draw` writes them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fnll.plotting.names import shown, ticks
from fnll.plotting.palette import COLOURS
from fnll.plotting.style import panels, save, styled
from fnll.scenario.card import Card

# Petroff's ten colours, chosen so that colour-blind readers tell any two apart; more classes get a colour scale.
CLASS_COLOURS = ("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300",
                 "#b9ac70", "#717581", "#92dadd")  # fmt: skip
BLUE, ORANGE, GREY = COLOURS[0], COLOURS[1], "#8A8A8A"
NAMES_UP_TO = 20  # classes whose names label an axis
NUMBERS_UP_TO = 10  # classes of a matrix that has its values written in
DOT = 0.92  # diameter of the largest dot, in the distance of two classes
LARGEST_DOT = 20.0  # points
OVERLAP = 2.2  # or of two clients: of many, neighbours may overlap


def draw(card: Card, folder: Path, clients: Sequence[int] = ()) -> list[Path]:
    """Write every figure that the card has the facts for, as SVG and PNG; `clients` get a transition matrix each."""
    written = save(class_bubbles(card), folder / "classes_bubbles")
    written += save(class_bars(card), folder / "classes_bars")
    if card.clean is not None:
        written += save(noise_levels(card), folder / "noise")
        written += save(transitions(card, clients), folder / "transitions")
    return written


def class_bubbles(card: Card) -> Figure:
    """Classes by clients, the area of a dot being the number of samples (FedNoRo, figure 3).

    With more classes than there is room for dots, the shade of a cell is that number.
    """
    clients, classes = card.num_clients, card.num_classes
    width, height = _between(2 + 0.22 * clients, 4.2, 14), _between(1.1 + 0.22 * classes, 2.2, 6)
    with styled():
        figure = Figure(figsize=(width, height), layout="constrained")
        ax = figure.add_subplot()
        bubbles(ax, card)
    return figure


def bubbles(ax: Axes, card: Card) -> None:
    """One panel of `class_bubbles`."""
    clients, classes = card.num_clients, card.num_classes
    ax.set(xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3), xlabel="client")
    _classes(ax, card)
    _whole(ax, clients)
    ticks(ax, card.client_names)
    if classes <= NAMES_UP_TO:
        _dots(ax, card.counts)
    else:
        ax.grid(visible=False)
        scale = PowerNorm(0.5, 0, int(card.counts.max()))  # so that few samples differ from none
        cells = ax.imshow(card.counts.T, cmap="Blues", norm=scale, aspect="auto", origin="lower")
        ax.figure.colorbar(cells, ax=ax, label="samples", fraction=0.05, pad=0.02)


def class_bars(card: Card) -> Figure:
    """Samples per class of every client, stacked, the clients sorted by size (FedCorr, figures 2 and 10)."""
    order = np.argsort(card.sizes, kind="stable")
    few = card.num_classes <= len(CLASS_COLOURS)
    with styled():
        figure, (ax,) = panels(1, width=_between(2 + 0.22 * card.num_clients, 4.6, 9), height=3.2)
        stacked(ax, card.counts[order], card.class_names)
        ax.grid(axis="x", visible=False)
        ax.set(xlim=(-0.7, card.num_clients - 0.3), ylim=(0, 1.05 * max(1, card.sizes.max())))
        ax.set(xlabel="client, sorted by size", ylabel="samples")
        if card.num_clients <= 30:
            ax.set_xticks(
                range(card.num_clients), [shown(card.called(k)) for k in order], rotation=90 if card.client_names else 0
            )
        else:
            ax.set_xticks([])
        if few:
            handles, labels = ax.get_legend_handles_labels()  # upside down, as the classes are stacked
            figure.legend(handles[::-1], labels[::-1], loc="outside right upper", title=kind(card), alignment="left")
        else:
            scale = ScalarMappable(Normalize(0, card.num_classes - 1), "viridis")
            figure.colorbar(scale, ax=ax, label=kind(card), fraction=0.05, pad=0.02)
    return figure


def noise_levels(card: Card) -> Figure:
    """Nominal and realised noise: of every client, and one against the other."""
    top = 1.06 * max(0.1, float(np.nanmax(np.concatenate([card.nominal, card.realised]), initial=0)))
    with styled():
        figure = Figure(figsize=(9, 3), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[2.2, 1])
        _noise_by_client(left, card)
        _noise_against_nominal(right, card, top)
        left.set_ylim(0, top)
        for axis in (left.yaxis, right.yaxis, right.xaxis):
            axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


def transitions(card: Card, clients: Sequence[int] = ()) -> Figure:
    """P(observed label | true class), over all clients and for the chosen ones; rows of absent classes are grey."""
    wanted: list[int | None] = [None, *clients]
    written = card.num_classes <= NUMBERS_UP_TO
    side = 3.4 if written else 3.0
    with styled():
        figure, axes = panels(len(wanted), columns=2 if len(wanted) == 4 else 3, width=side, height=side)
        for ax, k in zip(axes, wanted, strict=True):
            matrix = card.transition(k)
            assert matrix is not None
            rows = matrix.sum(1, keepdims=True)
            share = np.divide(matrix, rows, out=np.full(matrix.shape, np.nan), where=rows > 0)
            image = ax.imshow(share, cmap=_blues(), vmin=0, vmax=1)
            _matrix_axes(ax, card)
            who = "all clients" if k is None else shown(card.called(k)) if card.client_names else f"client {k}"
            wrong = 1 - np.trace(matrix) / max(1, matrix.sum())
            ax.set_title(f"{who}: {wrong:.0%} of {matrix.sum():,} wrong")
            if written:
                _write_shares(ax, share)
        percent = PercentFormatter(1, decimals=0)
        figure.colorbar(image, ax=axes, label="P(observed label | true class)", shrink=0.8, format=percent)
    return figure


def _noise_by_client(ax: Axes, card: Card) -> None:
    x = np.arange(card.num_clients)
    ax.bar(x, card.realised, width=0.9, color=COLOURS[5], label="realised: share of wrong labels")
    length = _between(330 / card.num_clients, 3, 14)
    noisy = np.flatnonzero(card.nominal > 0)
    ax.plot(noisy, card.nominal[noisy], ls="none", marker="_", ms=length, mew=1.4, color="#333333", label="nominal")
    ax.grid(axis="x", visible=False)
    ax.set(xlim=(-0.7, card.num_clients - 0.3), xlabel="client", ylabel="label noise")
    _whole(ax, card.num_clients)
    ticks(ax, card.client_names)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)


def _noise_against_nominal(ax: Axes, card: Card, top: float) -> None:
    ax.plot([0, top], [0, top], color=GREY, lw=1, ls="--", zorder=1)
    ax.text(0.55 * top, 0.6 * top, "equal", ha="right", va="bottom", color=GREY, fontsize=8)
    ax.scatter(card.nominal, card.realised, s=22, color=BLUE, alpha=0.55, linewidths=0, zorder=2)
    ends = (-0.04 * top, top)
    ax.set(xlim=ends, ylim=ends, xlabel="nominal noise", ylabel="realised noise")
    ax.set_aspect("equal")
    if not np.isfinite(card.nominal).any():
        ax.text(0.5, 0.3, "no nominal levels", transform=ax.transAxes, ha="center", color=GREY)


def _blues() -> mpl.colors.Colormap:
    return mpl.colormaps["Blues"].with_extremes(bad="#EFEFEF")


def _matrix_axes(ax: Axes, card: Card) -> None:
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set(xlabel="observed label", ylabel="true class")
    if card.num_classes <= NAMES_UP_TO:
        ticks = range(card.num_classes)
        long = max(map(len, card.class_names)) > 2
        ax.set_xticks(ticks, card.class_names, rotation=90 if long else 0, fontsize=7)
        ax.set_yticks(ticks, card.class_names, fontsize=7)


def _write_shares(ax: Axes, share: np.ndarray) -> None:
    for (i, j), value in np.ndenumerate(share):
        if value >= 0.005:
            text = f"{100 * value:.0f}"
            ax.text(j, i, text, ha="center", va="center", fontsize=6.5, color="white" if value > 0.55 else "#222222")


def _classes(ax: Axes, card: Card) -> None:
    if card.num_classes <= NAMES_UP_TO:
        ax.set_yticks(range(card.num_classes), card.class_names)
    else:
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel(kind(card))


def kind(card: Card) -> str:
    """What the classes of a card are."""
    return "true class" if card.clean is not None else "observed label"


def _whole(ax: Axes, clients: int) -> None:
    if clients <= 30:
        ax.set_xticks(range(clients))
    else:
        ax.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))


def stacked(ax: Axes, counts: np.ndarray, names: Sequence[str]) -> None:
    """One collection of rectangles per class: a rectangle each, as `Axes.bar` has it, would be 10,000 for CIFAR-100."""
    clients, classes = counts.shape
    few = classes <= len(CLASS_COLOURS)
    colours = CLASS_COLOURS if few else mpl.colormaps["viridis"](np.linspace(0, 1, classes))
    line = 0.3 if few and clients <= 40 else 0.0
    top = np.cumsum(counts, axis=1)
    left = np.arange(clients) - 0.45
    for j, name in enumerate(names):
        low, high, right = top[:, j] - counts[:, j], top[:, j], left + 0.9
        corners = np.stack(
            [np.stack(point, -1) for point in ((left, low), (left, high), (right, high), (right, low))], 1
        )
        ax.add_collection(
            PolyCollection(list(corners), facecolor=colours[j], edgecolor="white", linewidth=line, label=name),
            autolim=False,
        )


def _dots(ax: Axes, counts: np.ndarray) -> None:
    """A dot for every client and class, with three round numbers of samples as a legend above."""
    largest = max(1, int(counts.max()))
    steps = sorted({_round_number(largest * part) for part in (0.1, 0.4, 1.0)})

    def legend(area: float) -> None:
        look: dict[str, Any] = {"ls": "none", "marker": "o", "mew": 0, "color": BLUE, "alpha": 0.8}
        dots = [Line2D([], [], ms=float(np.sqrt(value * area)), label=f"{value:,}", **look) for value in steps]
        ax.legend(handles=dots, title="samples", ncols=len(dots), loc="lower right", bbox_to_anchor=(1, 1))

    legend(0)
    ax.figure.canvas.draw()  # lays the axes out: a dot is measured in points, the room for it in clients
    area = _largest_dot(ax, *counts.shape) ** 2 / largest
    legend(area)
    k, j = np.nonzero(counts)
    ax.scatter(k, j, s=counts[k, j] * area, color=BLUE, alpha=0.8, linewidths=0)


def _largest_dot(ax: Axes, clients: int, classes: int) -> float:
    """Diameter in points of the dot with the most samples."""
    box = ax.get_window_extent()
    crowded = OVERLAP if clients > 30 else DOT
    room = min(crowded * box.width / (clients + 0.4), DOT * box.height / (classes + 0.4))
    return min(LARGEST_DOT, float(room) * 72 / ax.figure.get_dpi())


def _round_number(value: float) -> int:
    """The largest of 1, 2, 5, 10, 20, ... that is not above `value` (1 at least)."""
    power = 10 ** int(np.floor(np.log10(max(1, value))))
    return int(max(step * power for step in (1, 2, 5) if step * power <= max(1, value)))


def _between(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
