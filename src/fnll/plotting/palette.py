"""One look for a method everywhere: figures, page, every axis."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

# Okabe and Ito's colours, which colour-blind readers tell apart; yellow, too light for a line, comes last and darkened.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8F8600")
DASHES = ("solid", "dashed", "dotted", "dashdot")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
YARDSTICK = "#6B6B6B"


@dataclass(frozen=True)
class Look:
    """How a method is drawn; colour never carries the distinction alone."""

    colour: str
    dash: str
    marker: str


def looks(methods: Sequence[str], yardsticks: Collection[str] = ()) -> dict[str, Look]:
    """A look for every method in order; what does not compete is grey and not solid."""
    competing = [method for method in methods if method not in yardsticks]
    apart = [method for method in methods if method in yardsticks]
    chosen = {
        method: Look(COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)], MARKERS[i % len(MARKERS)])
        for i, method in enumerate(competing)
    }
    return chosen | {method: Look(YARDSTICK, DASHES[1 + i % 3], "*") for i, method in enumerate(apart)}
