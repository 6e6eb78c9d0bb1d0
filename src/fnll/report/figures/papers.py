"""Figures of the papers that lay several runs side by side. One function each; figures of one run are in `clients`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import PercentFormatter

from fnll.errors import UserError
from fnll.harness.metrics import metric_of
from fnll.harness.status import Status
from fnll.plotting.palette import COLOURS, looks
from fnll.plotting.style import legend_below, panels, styled, whole_numbers
from fnll.report.analysis import Analysis
from fnll.report.figures.clients import density, levels, mixture, recorded, similarity_panel
from fnll.report.figures.lines import NAMELESS, Names, band
from fnll.report.folders import read_run
from fnll.report.mixtures import Indicator, indicators, rates_of
from fnll.report.store import Store
from fnll.scenario.card_figures import stacked

UPDATES = "comm/client_updates"
RATES = {"recall": "Re", "precision": "Pr", "matching": "MR"}


def pairs_with(analysis: Analysis, outer: str = "fedcorr") -> dict[str, str]:
    """Methods that were run alone and inside `outer`: `feddyn` → `fedcorr + feddyn`."""
    rows = analysis.store.methods
    return {inner: f"{outer} + {inner}" for inner in rows if f"{outer} + {inner}" in rows}


def alone_and_inside(analysis: Analysis, outer: str = "fedcorr") -> Figure:
    """Bars of methods alone and with FedCorr's first two stages before them, over the cells (FedCorr, figure 4)."""
    found = pairs_with(analysis, outer)
    if not found:
        raise UserError(f"no method in {analysis.store.root} was run both alone and as method@method.usual of {outer}")
    cells = analysis.store.cell_labels
    known = analysis.cells.set_index(["method", "cell"])
    scale = 100 if metric_of(analysis.metric).is_fraction else 1
    with styled():
        figure, axes = panels(len(found), width=3.4, height=2.6, share=True)
        for ax, (inner, both) in zip(axes, found.items(), strict=True):
            for shift, (row, colour) in enumerate(((inner, COLOURS[5]), (both, COLOURS[0]))):
                means, stds = (
                    [scale * float(known[part].get((row, cell), np.nan)) for cell in cells] for part in ("mean", "std")
                )
                place = np.arange(len(cells)) + 0.4 * shift - 0.2
                label = f"with {analysis.store.name(outer)}" if shift else "alone"
                ax.bar(place, means, 0.38, yerr=np.nan_to_num(stds), color=colour, error_kw={"lw": 0.8}, label=label)
            ax.set_xticks(range(len(cells)), cells, rotation=20 if len(cells) > 3 else 0, fontsize=7)
            ax.set(
                title=analysis.store.name(inner),
                ylabel=f"{metric_of(analysis.metric).words} (%)" if scale == 100 else analysis.metric,
            )
            ax.grid(axis="x", visible=False)
        legend_below(figure, axes[:1])
    return figure


def architectures(store: Store, run_ids: Sequence[str]) -> Figure:
    """Cumulative LID after the last pass, a panel per network (FedCorr, figure 5)."""
    with styled():
        figure, axes = panels(len(run_ids), width=3.1, height=2.4)
        for ax, run_id in zip(axes, run_ids, strict=True):
            fact = recorded(store, run_id, "cumulative_lid")[-1]
            values = np.array(fact["value"], dtype=float)
            density(ax, values, levels(store, run_id), mixture(store, run_id, "cumulative_lid", fact["t"], values))
            ax.set(title=network_of(store, run_id), xlabel="cumulative LID")
        legend_below(figure, axes)
    return figure


def network_of(store: Store, run_id: str) -> str:
    """The network that a run trained, by the name it was chosen by."""
    path = store.runs.loc[store.runs["run_id"] == run_id, "path"].iloc[0]
    return read_run(Path(str(path))).choices.get("model", "?")


def stages(
    frame: pd.DataFrame, y: str = "test/accuracy", bordering: str | None = None, names: Names = NAMELESS
) -> Figure:
    """Curves against client updates; each ends in a dot where its budget does, dotted lines are the borders between
    stages of `bordering`, by default the row with most stages (FedCorr, figure 9). Give it the rows of one cell.
    """
    whole = frame[frame["status"] == Status.FINISHED]
    methods = [str(m) for m in whole["method"].astype("category").cat.remove_unused_categories().cat.categories]
    styles = looks(methods, set(whole.loc[whole["kind"] != "method", "method"]))
    bordering = bordering or max(methods, key=lambda m: whole.loc[whole["method"] == m, "stage"].nunique())
    with styled():
        figure, (ax,) = panels(1, width=6.4, height=3.6)
        for method in methods:
            line, look = band(whole[whole["method"] == method], UPDATES, y), styles[method]
            ax.plot(line.x, line.mean, color=look.colour, linestyle=look.dash, label=names.get(method, method))
            ax.plot(line.x[-1:], line.mean[-1:], color=look.colour, marker="o", markersize=5)
            ax.fill_between(line.x, line.mean - line.std, line.mean + line.std, color=look.colour, alpha=0.12, lw=0)
        for border in borders(whole[whole["method"] == bordering]):
            ax.axvline(border, color="#777777", linestyle="dotted", lw=1)
        ax.set(xlabel=metric_of(UPDATES).words, ylabel=metric_of(y).words)
        if metric_of(y).is_fraction:
            ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        legend_below(figure, [ax], most=3)
    return figure


def borders(frame: pd.DataFrame) -> list[float]:
    """Client updates at which a stage ended, mean over runs that pass through the same stages."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for _, run in frame.groupby("run_id"):
        before = run.iloc[:-1].reset_index(drop=True)
        after = run.iloc[1:].reset_index(drop=True)
        changed = before["stage"] != after["stage"]
        for one, other, at in zip(
            before["stage"][changed], after["stage"][changed], before[UPDATES][changed], strict=True
        ):
            found[str(one), str(other)].append(float(at))
    return [float(np.mean(places)) for places in found.values()]


def local_models(store: Store, run_ids: Sequence[str]) -> Figure:
    """Test accuracy of every client's own model, clients sorted by label noise, a panel per run (FedRN, figure 1)."""
    with styled():
        figure, axes = panels(len(run_ids), width=3.1, height=2.4)
        for ax, run_id in zip(axes, run_ids, strict=True):
            accuracy, noise = latest_local(store, run_id), levels(store, run_id)
            order = np.argsort(noise, kind="stable")
            values = np.array([accuracy.get(int(k), np.nan) for k in order])
            ax.bar(np.arange(len(order)), values, width=1.0, color=COLOURS[5])
            known = values[np.isfinite(values)]
            ax.axhline(float(np.mean(known)), color="#333333", lw=1, linestyle="dashed")
            row = store.runs[store.runs["run_id"] == run_id].iloc[0]
            ax.set_title(f"{store.name(row['method'])}: mean {np.mean(known):.1%}, std {np.std(known):.1%}", fontsize=8)
            ax.set(xlabel="client, sorted by label noise", ylabel="test accuracy", ylim=(0, 1))
            ax.yaxis.set_major_formatter(PercentFormatter(1.0))
            whole_numbers(ax.xaxis)
    return figure


def latest_local(store: Store, run_id: str) -> dict[int, float]:
    """The last known accuracy of each client's own model: models that are kept, or what clients uploaded."""
    found: dict[int, float] = {}
    for fact in store.facts(run_id, "upload_accuracy") or recorded(store, run_id, "local_accuracy"):
        found |= {int(client): float(value) for client, value in fact["value"].items() if value is not None}
    return found


def similarities(store: Store, *run_ids: str) -> Figure:
    """Similarity of clients' outputs, clients ordered by class, a panel per run: without and with noise (FedRN, 5)."""
    with styled():
        figure, axes = panels(len(run_ids), width=3.4, height=3.0)
        images: list[AxesImage] = []
        for ax, run_id in zip(axes, run_ids, strict=True):
            images.append(similarity_panel(ax, store, run_id))
            noise = levels(store, run_id)
            known = noise[np.isfinite(noise)]
            ax.set_title(
                f"label noise {known.min():.1f} to {known.max():.1f}" if known.any() else "without label noise"
            )
        lows, highs = zip(*(image.get_clim() for image in images), strict=True)
        for image in images:
            image.set_clim(min(lows), max(highs))
        figure.colorbar(images[0], ax=axes, label="cosine similarity", shrink=0.8)
    return figure


def partitions(store: Store, run_ids: Sequence[str]) -> Figure:
    """What every client holds, by true class, a panel per run (FedCorr, figures 2 and 10; FedNoRo, figure 3)."""
    with styled():
        figure, axes = panels(len(run_ids), width=4.0, height=2.8)
        for ax, run_id in zip(axes, run_ids, strict=True):
            counts = held(recorded(store, run_id, "confusion")[0]["value"])
            order = np.argsort(counts.sum(axis=1), kind="stable")
            stacked(ax, counts[order], [str(c) for c in range(counts.shape[1])])
            row = store.runs[store.runs["run_id"] == run_id].iloc[0]
            ax.set_title(f"{row['dataset']}, {row['partition']}", fontsize=8)
            ax.grid(axis="x", visible=False)
            ax.set(xlim=(-0.7, len(counts) - 0.3), ylim=(0, 1.05 * max(1, counts.sum(axis=1).max())))
            ax.set(xlabel="client, sorted by size", ylabel="samples")
            ax.set_xticks([])
    return figure


def held(confusion: Sequence[Sequence[Sequence[int]] | None]) -> np.ndarray:
    """(clients, classes): samples by true class, from counts of (true class, label) per client."""
    classes = max(len(counts) for counts in confusion if counts)
    return np.array([np.sum(counts, axis=1) if counts else np.zeros(classes) for counts in confusion])


def warmups(store: Store, run_ids: Sequence[str], mixtures: int) -> Figure:
    """Recall, precision and exact matches over many mixtures against the rounds of warm-up (FedNoRo, figure 4)."""
    by_rounds: defaultdict[int, list[Indicator]] = defaultdict(list)
    for run_id in run_ids:
        path = store.runs.loc[store.runs["run_id"] == run_id, "path"].iloc[0]
        for indicator in indicators(Path(str(path))):
            by_rounds[indicator.t].append(indicator)
    rounds = sorted(by_rounds)
    with styled():
        figure, (ax,) = panels(1, width=4.6, height=3.0)
        rates = {t: [rates_of(one, range(mixtures)) for one in by_rounds[t]] for t in rounds}
        for (name, label), colour in zip(RATES.items(), COLOURS, strict=False):
            _rate(ax, rounds, [[getattr(rate, name) for rate in rates[t]] for t in rounds], label, colour)
        ax.set(xlabel="rounds of warm-up, T₁", ylabel="over mixtures and runs", ylim=(-0.02, 1.02))
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        whole_numbers(ax.xaxis)
        ax.legend(loc="best")
    return figure


def _rate(ax: Axes, rounds: Sequence[int], values: Sequence[Sequence[float]], label: str, colour: str) -> None:
    means = np.array([np.mean(v) for v in values])
    stds = np.array([np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in values])
    ax.plot(rounds, means, color=colour, marker="o", label=label)
    ax.fill_between(rounds, means - stds, means + stds, color=colour, alpha=0.12, lw=0)
