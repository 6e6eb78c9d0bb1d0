"""Several scenarios in one picture: FedCorr's figures 2 and 10, FedNoRo's figure 3."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from fnll.plotting.style import panels, save, styled
from fnll.scenario.card import Card
from fnll.scenario.card_figures import CLASS_COLOURS, bubbles, kind, stacked


def draw_compared(cards: Mapping[str, Card], folder: Path) -> list[Path]:
    """Write both pictures of the scenarios, each under its title, as SVG and PNG."""
    written = save(compared_bars(cards), folder / "compared_bars")
    return written + save(compared_bubbles(cards), folder / "compared_bubbles")


def compared_bars(cards: Mapping[str, Card]) -> Figure:
    """Samples per class of every client, stacked and sorted by size, a panel per scenario on one scale."""
    first = next(iter(cards.values()))
    with styled():
        figure, axes = panels(len(cards), width=4.0, height=2.8)
        top = max(1, *(int(card.sizes.max()) for card in cards.values()))
        for ax, (title, card) in zip(axes, cards.items(), strict=True):
            order = np.argsort(card.sizes, kind="stable")
            stacked(ax, card.counts[order], card.class_names)
            ax.grid(axis="x", visible=False)
            ax.set(xlim=(-0.7, card.num_clients - 0.3), ylim=(0, 1.05 * top), title=title)
            ax.set(xlabel="client, sorted by size", ylabel="samples")
            ax.set_xticks([])
        if first.num_classes <= len(CLASS_COLOURS):
            handles, labels = axes[0].get_legend_handles_labels()  # upside down, as the classes are stacked
            figure.legend(handles[::-1], labels[::-1], loc="outside right upper", title=kind(first), alignment="left")
        else:
            scale = ScalarMappable(Normalize(0, first.num_classes - 1), "viridis")
            figure.colorbar(scale, ax=axes, label=kind(first), fraction=0.05, pad=0.02)
    return figure


def compared_bubbles(cards: Mapping[str, Card]) -> Figure:
    """Classes by clients, the area of a dot being the number of samples, a panel per scenario."""
    classes = max(card.num_classes for card in cards.values())
    with styled():
        figure, axes = panels(len(cards), columns=2, width=5.6, height=min(6.0, max(2.8, 1.4 + 0.22 * classes)))
        for ax, (title, card) in zip(axes, cards.items(), strict=True):
            ax.set_title(title, loc="left")
            bubbles(ax, card)
    return figure
