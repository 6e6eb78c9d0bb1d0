"""The sketch of the W&B dashboard. To draw it again:

    fnll dashboard --print | python docs/images/dashboard.py > docs/images/dashboard.svg

It is drawn from the workspace's own description, sections and titles as they are there; the lines in its panels are
decoration.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from xml.sax.saxutils import escape

WIDTH, MARGIN, COLUMNS, GAP = 960, 20, 5, 12
PANEL, TITLE = (176, 96), 34
LOOKS = (("#0072B2", 0.0), ("#D55E00", 0.25), ("#009E73", 0.5))


def curve(x: float, y: float, delay: float) -> str:
    """A line that rises and levels off, as accuracies do."""
    width, height = PANEL[0] - 24, PANEL[1] - TITLE - 18
    points = [
        f"{x + 12 + width * i / 20:.1f},{y + TITLE + height * (0.15 + delay + 0.6 * math.exp(-i / 4)):.1f}"
        for i in range(21)
    ]
    return " ".join(points)


def panel(title: str, x: float, y: float) -> str:
    """One panel with its title."""
    lines = textwrap.wrap(title, 24)[:2]
    words = "".join(f'<tspan x="{x + 10}" dy="{13 if i else 0}">{escape(line)}</tspan>' for i, line in enumerate(lines))
    curves = "".join(
        f'<polyline points="{curve(x, y, delay)}" fill="none" stroke="{colour}" stroke-width="1.6" opacity="0.55"/>'
        for colour, delay in LOOKS
    )
    frame = f'<rect x="{x}" y="{y}" width="{PANEL[0]}" height="{PANEL[1]}" rx="5" fill="#fff" stroke="#d5d8dc"/>'
    axis = f'<text class="axis" x="{x + PANEL[0] / 2}" y="{y + PANEL[1] - 5}" text-anchor="middle">step</text>'
    return f'{frame}<text class="panel" x="{x + 10}" y="{y + 17}">{words}</text>{curves}{axis}'


def sketch(board: dict) -> str:
    """The whole board as SVG."""
    parts, y = [], 34.0
    for section in board["spec"]["section"]["panelBankConfig"]["sections"]:
        parts.append(f'<text class="section" x="{MARGIN}" y="{y + 14}">{escape(section["name"])}</text>')
        y += 26
        for i, one in enumerate(section["panels"]):
            place = MARGIN + i % COLUMNS * (PANEL[0] + GAP), y + i // COLUMNS * (PANEL[1] + GAP)
            parts.append(panel(one["config"]["chartTitle"], *place))
        y += -(-len(section["panels"]) // COLUMNS) * (PANEL[1] + GAP) + 16
    style = (
        "text{font-family:Helvetica,Arial,sans-serif;fill:#1b1e23}.section{font-size:15px;font-weight:700}"
        ".panel{font-size:11px;font-weight:600}.axis{font-size:9px;fill:#6b7078}.note{font-size:11px;fill:#6b7078}"
    )
    note = "A sketch from the workspace's description: no screenshot, no data. One line per method, mean over seeds."
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" width="{WIDTH}" height="{y:.0f}">'
    ground = f'<rect width="{WIDTH}" height="{y:.0f}" fill="#f6f7f8"/>'
    said = f'<text class="note" x="{MARGIN}" y="20">{escape(note)}</text>'
    return f"{head}<style>{style}</style>{ground}{said}{''.join(parts)}</svg>\n"


if __name__ == "__main__":
    print(sketch(json.load(sys.stdin)), end="")
