"""One look for a method everywhere: every figure, every page, every report."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

# Okabe and Ito's colours, which colour-blind readers tell apart; yellow, too light for a line, comes last and darkened.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8F8600")
# Tol's muted colours, for the many that those do not suffice for.
FURTHER = ("#332288", "#117733", "#882255", "#AA4499", "#44AA99", "#661100", "#999933")
DASHES = ("solid", "dashed", "dotted", "dashdot")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
YARDSTICK = "#6B6B6B"
# What most reports compare has the colours that are told apart best; all other methods are coloured by their names.
KNOWN = dict(zip(("fedavg", "fedcorr", "fednoro", "fedrn", "fedprox", "rofl", "fedlsr"), COLOURS, strict=True))


@dataclass(frozen=True)
class Look:
    """How a method is drawn; colour never carries the distinction alone."""

    colour: str
    dash: str
    marker: str


def colour_of(method: str) -> str:
    """A method's colour: it depends on its name alone, so it is the same in every report, for plugins too."""
    if method in KNOWN:
        return KNOWN[method]
    palette = (*FURTHER, *COLOURS)
    return palette[int.from_bytes(hashlib.blake2b(method.encode(), digest_size=4).digest()) % len(palette)]


def looks(methods: Sequence[str], yardsticks: Collection[str] = ()) -> dict[str, Look]:
    """A look for every method: those of one colour differ in dash and marker; what does not compete is grey."""
    chosen: dict[str, Look] = {}
    for method in sorted(methods, key=lambda name: name not in KNOWN):  # the known ones keep solid lines
        colour = YARDSTICK if method in yardsticks else colour_of(method)
        before = sum(look.colour == colour for look in chosen.values())
        dash = DASHES[1 + before % 3] if method in yardsticks else DASHES[before % len(DASHES)]
        marker = "*" if method in yardsticks else MARKERS[before % len(MARKERS)]
        chosen[method] = Look(colour, dash, marker)
    return {method: chosen[method] for method in methods}
