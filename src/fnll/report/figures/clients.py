"""What one run recorded about its clients: noise estimates, LID, confusion matrices, neighbours. One function each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from scipy.stats import gaussian_kde, norm, pearsonr

from fnll.errors import UserError
from fnll.plotting.names import shown, ticks
from fnll.plotting.palette import COLOURS
from fnll.plotting.style import legend_above, legend_below, panels, styled, whole_numbers
from fnll.report.store import Store

CLEAN, NOISY, MODEL = COLOURS[0], COLOURS[1], "#333333"
Mixture = dict[str, list[float]]
TICKS = 25  # client numbers that fit under a wide panel
SHOWN = 5  # clients that get confusion matrices of their own, as in the paper


def recorded(store: Store, run_id: str, name: str) -> list[dict[str, Any]]:
    """The facts that a figure needs; a `UserError` names what the run did not record."""
    facts = store.facts(run_id, name)
    if not facts:
        raise UserError(
            f"run {run_id} recorded no {name!r}, which this figure draws; choose a run of a method that does"
        )
    return facts


def levels(store: Store, run_id: str, column: str = "realised") -> np.ndarray:
    """Noise level of every client of a run: `realised`, the share of wrong labels, or `nominal`; NaN where unknown."""
    return np.array(store.runs.loc[store.runs["run_id"] == run_id, column].iloc[0], dtype=float)


def names(store: Store, run_id: str) -> tuple[str, ...]:
    """What people call the clients of a run; nothing where they have no names."""
    return tuple(store.runs.loc[store.runs["run_id"] == run_id, "client_names"].iloc[0])


def noise_levels(store: Store, run_id: str) -> Figure:
    """The noise level each client was meant to have, and the share of wrong labels it got."""
    nominal, realised = levels(store, run_id, "nominal"), levels(store, run_id)
    with styled():
        figure, (ax,) = panels(1, width=6.2)
        clients = np.arange(len(realised))
        ax.bar(clients, realised, color=COLOURS[5], label="realised")
        ax.plot(clients, nominal, linestyle="none", marker="_", markersize=9, color=MODEL, label="nominal")
        _clients(ax, "label noise", names(store, run_id))
        legend_above(ax)
    return figure


def noise_estimates(store: Store, run_id: str) -> Figure:
    """Noise levels per client: true before training, as last estimated, true after that correction (FedCorr, figure 7).

    What later stages correct is not in it. Below, where the run recorded `sample_detection`: true and false positives
    and negatives of each client found noisy.
    """
    last = recorded(store, run_id, "noise_levels")[-1]
    estimated = np.array(last["value"], dtype=float)
    left = [fact for fact in store.facts(run_id, "per_client_noise") if 0 < fact["t"] <= last["t"]]
    detection = [fact for fact in store.facts(run_id, "sample_detection") if fact["t"] <= last["t"]]
    with styled():
        figure, axes = panels(2 if detection else 1, columns=1, width=6.2)
        clients = np.arange(len(estimated))
        axes[0].plot(clients, levels(store, run_id), ":", color=CLEAN, label="true, before training")
        if left:
            stage = _stage(store, run_id, left[-1])
            axes[0].plot(clients, np.array(left[-1]["value"], float), color=NOISY, label=f"true, after {stage}")
        axes[0].plot(clients, estimated, "--", color=COLOURS[2], marker="o", markersize=3, label="estimated")
        _clients(axes[0], "label noise", names(store, run_id))
        legend_above(axes[0])
        if detection:
            _detection(axes[1], detection[-1]["value"], names(store, run_id))
    return figure


def lid(store: Store, run_id: str) -> Figure:
    """LID and cumulative LID after the last pass: density and mixture, score against noise level (FedCorr, fig. 3)."""
    with styled():
        figure, axes = panels(4, columns=2)
        for i, name in enumerate(("lid", "cumulative_lid")):
            fact = recorded(store, run_id, name)[-1]
            values = np.array(fact["value"], dtype=float)
            density(axes[i], values, levels(store, run_id), mixture(store, run_id, name, fact["t"], values))
            axes[i].set_title(name.replace("_lid", " LID").replace("lid", "LID"))
            _scatter(axes[2 + i], levels(store, run_id), values, "true noise level", axes[i].get_title())
        legend_below(figure, axes)
    return figure


def lid_passes(store: Store, run_id: str) -> Figure:
    """Distribution of LID and cumulative LID at every pass (FedCorr, figure 6)."""
    facts = {name: recorded(store, run_id, name) for name in ("lid", "cumulative_lid")}
    passes = len(facts["lid"])
    with styled():
        figure, axes = panels(2 * passes, columns=passes, width=2.2, height=2.0)
        for row, (name, recordings) in enumerate(facts.items()):
            for column, fact in enumerate(recordings[:passes]):
                ax, values = axes[row * passes + column], np.array(fact["value"], dtype=float)
                density(ax, values, levels(store, run_id), mixture(store, run_id, name, fact["t"], values))
                ax.set_title(f"{'cumulative ' if row else ''}LID, pass {column + 1}")
                ax.set_ylabel("")
        legend_below(figure, axes)
    return figure


def confusion(store: Store, run_id: str, *, first: bool = False) -> Figure:
    """Labels against the true ones as each stage left them: all clients, and five: the noisiest, or the first ones.

    FedCorr's figure 8 shows the first five.
    """
    stages = _by_stage(store, run_id, recorded(store, run_id, "confusion"))
    given = {k: np.array(matrix) for k, matrix in enumerate(next(iter(stages.values()))) if matrix}
    columns: dict[str, list[int]] = {"all clients": list(given)}
    if len(given) > 1:  # of very many clients the run recorded the sum alone
        by_noise = sorted(given, key=lambda k: np.trace(given[k]) / max(given[k].sum(), 1))
        named, chosen = names(store, run_id), sorted((list(given) if first else by_noise)[:SHOWN])
        columns |= {named[k] if named else f"client {k}": [k] for k in chosen}
    with styled():
        figure, axes = panels(len(columns) * len(stages), columns=len(columns), width=2.0, height=2.2)
        grid = iter(axes)
        for i, (stage, matrices) in enumerate(stages.items()):
            for j, (name, clients) in enumerate(columns.items()):
                ax = next(grid)
                _matrix(ax, np.sum([matrices[k] for k in clients], axis=0).astype(float), shown(name))
                ax.set_xlabel("label" if i == len(stages) - 1 else "")
                ax.set_ylabel("" if j else f"{stage}\ntrue label")
    return figure


def expertise(store: Store, run_id: str) -> Figure:
    """Training accuracy of every client against its noise level, with their correlation (FedRN, figure 4)."""
    truth = levels(store, run_id)
    values = np.full(len(truth), np.nan)
    for client, accuracy in recorded(store, run_id, "accuracy")[-1]["value"].items():
        values[int(client)] = np.nan if accuracy is None else accuracy
    known = np.isfinite(values) & np.isfinite(truth)
    varied = len(set(truth[known])) > 1 and len(set(values[known])) > 1  # otherwise there is no correlation
    with styled():
        figure, (ax,) = panels(1, width=3.6, height=2.8)
        _scatter(ax, truth, values, "true noise level", "training accuracy")
        if varied:
            ax.set_title(f"correlation {pearsonr(truth[known], values[known]).statistic:.2f}".replace("-", "−"))
    return figure


def similarity(store: Store, run_id: str) -> Figure:
    """How alike clients' outputs are for one random image, clients ordered by class (compare FedRN, figure 5)."""
    with styled():
        figure, (ax,) = panels(1, width=3.6, height=3.2)
        figure.colorbar(similarity_panel(ax, store, run_id), ax=ax, label="cosine similarity")
    return figure


def similarity_panel(ax: Axes, store: Store, run_id: str) -> AxesImage:
    """The matrix of one run, its clients in the order of `by_class`."""
    matrix = np.array(recorded(store, run_id, "similarity")[-1]["value"], dtype=float)
    order = by_class(store, run_id, len(matrix))
    image = ax.imshow(matrix[np.ix_(order, order)], cmap="cividis")
    ax.set(xlabel="client, ordered by class", ylabel="client")
    whole_numbers(ax.xaxis, ax.yaxis)
    ax.grid(visible=False)
    return image


def by_class(store: Store, run_id: str, clients: int) -> list[int]:
    """Clients by the true classes they hold most of, so that those with similar data are neighbours.

    As they are numbered where the run recorded no counts per client.
    """
    facts = store.facts(run_id, "confusion")
    if not facts or len(facts[0]["value"]) != clients:
        return list(range(clients))
    held = [np.array(counts).sum(axis=1) if counts else np.zeros(1) for counts in facts[0]["value"]]
    return sorted(range(clients), key=lambda k: (_main_classes(held[k]), k))


def _main_classes(counts: np.ndarray) -> list[int]:
    """The two classes that a client holds most of, in the order of their numbers."""
    return sorted(int(c) for c in np.argsort(-counts, kind="stable")[:2] if counts[c] > 0)


def _by_stage(store: Store, run_id: str, facts: list[dict[str, Any]]) -> dict[str, Any]:
    """The last record of every stage, in order; before the first round the labels are those given."""
    return {_stage(store, run_id, fact): fact["value"] for fact in facts}


def _stage(store: Store, run_id: str, fact: dict[str, Any]) -> str:
    """The stage a fact is from; older records have it in the metrics only."""
    if "stage" in fact:
        return str(fact["stage"])
    steps = store.metrics[store.metrics["run_id"] == run_id]
    return str(dict(zip(steps["step"], steps["stage"], strict=True)).get(fact["step"], "given"))


def mixture(store: Store, run_id: str, name: str, t: int, values: np.ndarray) -> Mixture:
    """The mixture the run fitted to cumulative LID in that round; otherwise one fitted here in the same way."""
    fitted = [f["value"] for f in store.facts(run_id, "lid_gmm") if f["t"] == t and name == "cumulative_lid"]
    if fitted:
        return dict(fitted[-1])
    from fnll.tools import two_component_gmm  # late: torch takes seconds to import, and runs mostly record their own

    split = two_component_gmm(values[np.isfinite(values)], seed=0)
    parts = {"means": split.means, "variances": split.variances, "weights": split.weights}
    return {key: part.tolist() for key, part in parts.items()}


def density(ax: Axes, values: np.ndarray, truth: np.ndarray, fitted: Mixture) -> None:
    """Histogram of clean and noisy clients, the density of all, and the two components of a mixture."""
    ax.set_ylabel("clients")
    known = values[np.isfinite(values)]
    if not len(known):
        return
    span = np.ptp(known) or 1.0
    x = np.linspace(known.min() - 0.15 * span, known.max() + 0.15 * span, 200)
    for mask, colour, label in ((truth == 0, CLEAN, "clean clients"), (truth > 0, NOISY, "noisy clients")):
        group = values[mask & np.isfinite(values)]
        ax.hist(group, bins=np.linspace(x[0], x[-1], 25).tolist(), color=colour, alpha=0.55, label=label)
    scale = len(known) * (x[-1] - x[0]) / 24  # counts, so that histogram and densities share an axis
    if np.ptp(known) > 0:
        ax.plot(x, scale * gaussian_kde(known)(x), color="#999999", lw=1, label="density")
    parts = zip(fitted["means"], fitted["variances"], fitted["weights"], strict=True)
    for i, (mean, variance, weight) in enumerate(part for part in parts if part[1] > 0):  # 0: nothing to separate
        curve = scale * weight * norm.pdf(x, mean, np.sqrt(variance))
        ax.plot(x, curve, "--", color=MODEL, lw=1.2, label="mixture" if i == 0 else None)


def _scatter(ax: Axes, x: np.ndarray, y: np.ndarray, xlabel: str, ylabel: str) -> None:
    for mask, colour, marker in ((x == 0, CLEAN, "o"), (x > 0, NOISY, "^")):
        ax.scatter(x[mask], y[mask], color=colour, marker=marker, s=18, alpha=0.8)
    ax.set(xlabel=xlabel, ylabel=ylabel)


def _matrix(ax: Axes, counts: np.ndarray, title: str) -> None:
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    ax.imshow(share, cmap="cividis", norm=LogNorm(1e-3, 1, clip=True))  # off-diagonal mass is small and is the point
    wrong = 1 - np.trace(counts) / max(counts.sum(), 1)
    ax.set_title(f"{title}: {wrong:.1%} wrong", fontsize=8)
    whole_numbers(ax.xaxis, ax.yaxis)
    ax.grid(visible=False)


def _detection(ax: Axes, counts: dict[str, list[float]], named: Sequence[str]) -> None:
    names = {"tp": "true positive", "fn": "false negative", "fp": "false positive", "tn": "true negative"}
    bottom = np.zeros(len(counts["client"]))
    for (key, label), colour in zip(names.items(), (COLOURS[2], COLOURS[4], COLOURS[1], COLOURS[5]), strict=True):
        ax.bar(range(len(bottom)), counts[key], bottom=bottom, color=colour, label=label)
        bottom += np.array(counts[key], dtype=float)
    every = -(-len(bottom) // TICKS)
    told = [shown(named[int(k)]) if named else str(k) for k in counts["client"][::every]]
    ax.set_xticks(range(0, len(bottom), every), told)
    ax.set(xlabel="client found noisy", ylabel="samples")
    legend_above(ax)


def _clients(ax: Axes, ylabel: str, named: Sequence[str]) -> None:
    ax.set(xlabel="client", ylabel=ylabel, ylim=(0, 1.02))
    whole_numbers(ax.xaxis)
    ticks(ax, named)
