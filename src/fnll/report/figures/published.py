"""Other people's numbers and ours in one picture: published against ours, and logged curves over ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fnll.plotting.palette import Look, looks
from fnll.plotting.style import legend_below, panels, styled, whole_numbers
from fnll.report.outside import Overlay
from fnll.report.published import Beside, Comparison

MARGIN = 0.06  # of the axis, around the points


def published(found: Sequence[Comparison]) -> Figure:
    """Ours against the published value, a panel per table: on the diagonal they agree, bars are the spreads."""
    drawn = [(c, [cell for cell in c.cells if not np.isnan(cell.difference)]) for c in found]
    drawn = [(comparison, cells) for comparison, cells in drawn if cells]
    styles = looks(sorted({cell.key for _, cells in drawn for cell in cells}))
    with styled():
        figure, axes = panels(len(drawn), width=3.4, height=3.2)
        for ax, (comparison, cells) in zip(axes, drawn, strict=True):
            _against(ax, cells, styles)
            ax.set_title(comparison.printed.name)
            ax.set(xlabel=f"published ({cells[0].record.unit})", ylabel=f"ours ({cells[0].record.unit})")
        legend_below(figure, axes)
    return figure


def reference_curves(found: Sequence[Overlay]) -> Figure:
    """Logged curves (dashed) over ours, a panel per row and cell: mean over trials with a band."""
    styles = looks(list(dict.fromkeys(overlay.key for overlay in found)))
    with styled():
        figure, axes = panels(len(found), width=3.4, height=2.4)
        for ax, overlay in zip(axes, found, strict=True):
            _curve(ax, overlay.ours, "run_id", styles[overlay.key].colour, "solid", "ours")
            _curve(ax, overlay.theirs, "trial", "#222222", "dashed", "theirs")
            low = min(float(np.quantile(part["y"], 0.05)) for part in (overlay.ours, overlay.theirs))
            ax.set_ylim(bottom=low - 0.02)  # what the first rounds climb through tells nothing apart
            ax.set(
                title=f"{overlay.method} · {overlay.cell}",
                xlabel="step (m client updates each)",
                ylabel="test accuracy",
            )
            ax.yaxis.set_major_formatter(PercentFormatter(1.0))
            whole_numbers(ax.xaxis)
        legend_below(figure, axes[:1])
    return figure


def _against(ax: Axes, cells: Sequence[Beside], styles: Mapping[str, Look]) -> None:
    for key, method in dict.fromkeys((cell.key, cell.method) for cell in cells):
        mine, look = [cell for cell in cells if cell.key == key], styles[key]
        x, y = ([c.record.value for c in mine], [c.mean for c in mine])
        bars = (
            [c.record.spread or 0.0 for c in mine],
            [0.0 if np.isnan(c.std) else c.std for c in mine],
        )
        ax.errorbar(
            np.array(x, dtype=float), y, xerr=bars[0], yerr=bars[1], linestyle="none", marker=look.marker,
            color=look.colour, elinewidth=0.8, label=method,
        )  # fmt: skip
    numbers = [v for cell in cells for v in (cell.record.value or 0.0, cell.mean)]
    pad = MARGIN * (max(numbers) - min(numbers) or 1.0)
    ends = [min(numbers) - pad, max(numbers) + pad]
    ax.plot(ends, ends, color="#999999", lw=1, zorder=0)
    ax.set(xlim=ends, ylim=ends, aspect="equal")


def _curve(ax: Axes, curves: pd.DataFrame, key: str, colour: str, dash: str, label: str) -> None:
    wide = curves.pivot_table(index="x", columns=key, values="y")
    mean, std = wide.mean(axis=1), wide.std(axis=1, ddof=1).fillna(0.0)
    ax.plot(wide.index, mean, color=colour, linestyle=dash, lw=1.0, label=label)
    ax.fill_between(wide.index, mean - std, mean + std, color=colour, alpha=0.15, lw=0)
