"""Rows and columns of a comparison: which settings tell scenarios apart, and which tell methods apart.

A *cell* (column) is a scenario with its budget: data, partition, noise, network, clients, rounds. A *row* is a method.
Labels carry only the settings that differ in the store: a grid over (ρ, τ) has columns `ρ=0.4 τ=0`, not whole configs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fnll.report.folders import StoredRun

GROUPS = ("dataset", "partition", "noise", "model")
BUDGET = ("num_clients", "fraction", "rounds")
# Where a run is computed and what is written down beside it: none of these belongs in a label.
INCIDENTAL = {
    "executor",
    "logger",
    "hydra",
    "sweep",
    "experiment",
    "preset",
    "paper",
    "seed",
    "scenario_seed",
    "runs_dir",
    "device",
}
INCIDENTAL |= {"checkpoint_seconds", "diagnostics_every", "diagnostics_samples", "diagnostics_uploads"}
INCIDENTAL_LEAVES = {"root", "download", "cache", "path", "overlap", "_partial_", "_convert_", "_recursive_"}
SYMBOLS = {"rho": "ρ", "tau": "τ", "alpha": "α", "beta": "β", "mu": "μ", "lambda": "λ", "num_clients": "clients"}
WORDS: dict[Hashable, str] = {None: "none", True: "yes", False: "no"}

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One column: its label, unique in the store, and the full descriptions that a reader filters by."""

    label: str
    dataset: str
    partition: str
    noise: str
    other: str  # network and budget, where they differ


@dataclass(frozen=True)
class Place:
    """Where a run belongs."""

    method: str  # row label
    kind: str  # `method`, or what does not compete: `oracle` (knows the truth), `centralised` (all data in one place)
    cell: Cell


def arrange(runs: Sequence[StoredRun]) -> tuple[list[Place], list[Cell]]:
    """The place of every run, and the cells in reading order."""
    settings = [_settings(run) for run in runs]
    names = [method_name(run) for run in runs]
    keys = [*_column_keys(settings), *_crossed(settings, names)]
    points = [tuple(s.get(k) for k in keys) for s in settings]
    distinct = sorted(dict.fromkeys(points), key=lambda point: [sortable(v) for v in point])
    cells = dict(zip(distinct, _cells([dict(zip(keys, point, strict=True)) for point in distinct]), strict=True))
    rows = row_labels(names, points, [{k: v for k, v in s.items() if k not in keys} for s in settings])
    places = [Place(row, _kind(s), cells[point]) for row, s, point in zip(rows, settings, points, strict=True)]
    return places, list(cells.values())


def differing(settings: Sequence[Settings]) -> list[str]:
    """Keys that do not have one value throughout, in order of first appearance."""
    keys = dict.fromkeys(k for s in settings for k in s)
    return [k for k in keys if len({s.get(k) for s in settings}) > 1]


def common_settings(runs: Sequence[StoredRun]) -> Settings:
    """The settings that all runs share, without those of methods and those that belong in no table."""
    settings = [_settings(run) for run in runs]
    varied = {*differing(settings)}
    return {k: v for k, v in settings[0].items() if k not in varied and not k.startswith(("method.", "scenario."))}


def show(value: Hashable) -> str:
    """A setting's value, short."""
    if isinstance(value, tuple):
        return "[" + ", ".join(show(v) for v in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return WORDS[value] if value is None or isinstance(value, bool) else str(value)


def method_name(run: StoredRun) -> str:
    """The method as it was asked for on the command line."""
    name = str(run.summary.get("method") or run.choices.get("method") or run.run_id.rsplit("-", 1)[0])
    inside = [chosen for slot, chosen in sorted(run.choices.items()) if slot.startswith("method@")]
    return " + ".join([name, *inside])


def _settings(run: StoredRun) -> dict[str, Any]:
    """The settings of a run that may appear in a label."""
    kept = {
        key: value
        for key, value in run.config.items()
        if key.split(".")[0] not in INCIDENTAL and key.rsplit(".", 1)[-1] not in INCIDENTAL_LEAVES
    }
    for group in ("method", "scenario", "local", *GROUPS):
        target = str(kept.pop(f"{group}._target_", "–"))  # the name of the choice says it better
        if group in GROUPS:
            kept[group] = run.choices.get(group, target.rsplit(".", 1)[-1])
    exact = run.summary.get("exact", run.manifest.get("numerics", "exact") == "exact")
    return kept | {"numerics": "exact" if exact else "vectorised"}


def _kind(settings: Settings) -> str:
    if settings.get("scenario.oracle") not in (None, "none", False):
        return "oracle"
    return "centralised" if settings.get("scenario.pooled") else "method"


def _column_keys(settings: Sequence[Settings]) -> list[str]:
    keys = dict.fromkeys(k for s in settings for k in s)
    return [*GROUPS, *(k for k in keys if k in BUDGET or ("." in k and k.split(".")[0] in GROUPS))]


def _crossed(settings: Sequence[Settings], names: Sequence[str]) -> list[str]:
    """Further settings that make columns: those that every method was run with the same several values of.

    A learning rate that a preset tunes per method does not qualify (the methods' sets of values differ), so tuned
    methods stay in one column; a learning rate swept for all methods alike does.
    """
    columns = {*_column_keys(settings)}
    found = []
    for key in differing(settings):
        if key in columns or key.split(".")[0] in ("method", "scenario"):
            continue
        values: defaultdict[str, set[Hashable]] = defaultdict(set)
        for name, s in zip(names, settings, strict=True):
            values[name].add(s.get(key))
        if len({frozenset(v) for v in values.values()}) == 1:
            found.append(key)
    return found


def _cells(columns: Sequence[Settings]) -> list[Cell]:
    cells = []
    for mine in columns:
        parts = {group: _describe(mine, columns, group) for group in GROUPS}
        rest = [k for k in differing(columns) if k.split(".")[0] not in GROUPS]
        budget = _assignments(mine, rest)
        short = " · ".join(text for text in (*(brief for _, brief in parts.values()), budget) if text)
        dataset, partition, noise = (parts[group][0] for group in GROUPS[:3])
        other = " · ".join(text for text in (parts["model"][1], budget) if text)
        cells.append(Cell(short or f"{dataset} · {partition} · {noise}", dataset, partition, noise, other))
    return cells


def _describe(mine: Settings, columns: Sequence[Settings], group: str) -> tuple[str, str]:
    """How a cell reads in one group, in full and in brief: brief is empty where all cells agree."""
    peers = [c for c in columns if c[group] == mine[group]]  # other choices have other keys
    values = _assignments(mine, [k for k in differing(peers) if k.startswith(f"{group}.")])
    full = f"{mine[group]} {values}".strip()
    return full, (full if len({c[group] for c in columns}) > 1 else values)


def row_labels(names: Sequence[str], points: Sequence[Hashable], settings: Sequence[Settings]) -> list[str]:
    """Method names, with the settings in which two runs of one method in one cell differ: `fedprox (μ=0.1)`."""
    peers: defaultdict[tuple[str, Hashable], list[Settings]] = defaultdict(list)
    for name, point, s in zip(names, points, settings, strict=True):
        peers[name, point].append(s)
    varying: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for (name, _), group in peers.items():
        varying[name] |= dict.fromkeys(differing(group))
    labels = []
    for name, s in zip(names, settings, strict=True):
        values = _assignments(s, [k for k in varying[name] if s.get(k) is not None], ", ")
        labels.append(f"{name} ({values})" if values else name)
    return labels


def _assignments(settings: Settings, keys: Sequence[str], separator: str = " ") -> str:
    return separator.join(f"{_short(key, keys)}={_value(key, settings[key])}" for key in keys)


def _value(key: str, value: Hashable) -> str:
    return str(value).rsplit(".", 1)[-1] if key.endswith("._target_") else show(value)


def _short(key: str, among: Iterable[str]) -> str:
    """The last part of a dotted key where that is enough, as papers write it; `method.usual._target_` is `usual`."""
    stem, leaf = key.removesuffix("._target_"), key.removesuffix("._target_").rsplit(".", 1)[-1]
    alike = [k for k in among if k.removesuffix("._target_").rsplit(".", 1)[-1] == leaf]
    return SYMBOLS.get(leaf, leaf) if len(alike) <= 1 else stem


def sortable(value: Hashable) -> tuple[bool, float, str]:
    """Numbers by size, before names by the alphabet."""
    number = isinstance(value, int | float)
    return not number, float(value) if isinstance(value, int | float) else 0.0, "" if number else str(value)
