"""Names that people gave, under a figure's axis."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

LONGEST = 16  # characters of a name that fit under an axis
MOST = 30  # names that do


def ticks(ax: Axes, names: Sequence[str]) -> None:
    """Write the clients' names under the axis, if there are some and they fit."""
    if 0 < len(names) <= MOST:
        upright = max(map(len, names)) * len(names) > 60
        ax.set_xticks(range(len(names)), [shown(name) for name in names], rotation=90 if upright else 0)


def shown(name: str) -> str:
    """A name cut to fit, with the signs that matplotlib would take for a formula kept as they are."""
    short = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return short.replace("\\", "/").replace("$", r"\$")
