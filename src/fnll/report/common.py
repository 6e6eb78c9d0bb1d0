"""What all runs of a store have in common: a table of settings, and the sentence of a caption."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from fnll.harness.metrics import LAST
from fnll.report.cells import SYMBOLS, show
from fnll.report.store import Store
from fnll.report.table import Table, texts
from fnll.report.words import DATA, NETWORKS, NOISES, PARTITIONS, counted, word

QUIET = {"min_size", "seed", "legacy_seed", "validation", "images", "subset"}  # said elsewhere, or nothing to a reader
WHOLE = ("none", "native", "human")  # noise without parameters that a caption needs
LOCAL = {"lr": "learning rate", "batch_size": "batches of", "weight_decay": "weight decay"}


def settings_table(store: Store) -> Table:
    """Common settings in words; its CSV has every setting that all runs share, by its key."""
    rows = [texts(name, value) for name, value in in_words(store)]
    data = pd.DataFrame([(key, show(value)) for key, value in sorted(store.common.items())], columns=["key", "value"])
    note = "Settings that differ are in the headings of columns, in the names of rows, or in the notes of a table."
    return Table("settings", "Common settings", ("setting", "value"), tuple(rows), (note,), data, words=True)


def in_words(store: Store) -> Iterator[tuple[str, str]]:
    """The common settings one by one."""
    parts = {
        "data": data(store),
        "clients": ", ".join(filter(None, [clients(store), cohort(store)])),
        "label noise": noise(store, everything=True),
        "network": network(store, everything=True),
        "budget": _budget(store),
        "local training": _local(store.common),
        "evaluation": _evaluation(store.common),
        "seeds": _seeds(store),
        "protocol": {"shared": "the same settings for every method", "paper": "each paper's own settings"}.get(
            str(store.common.get("protocol")), ""
        ),
        "numerics": ", ".join(show(store.common[k]) for k in ("numerics", "precision") if k in store.common),
    }
    yield from ((name, value) for name, value in parts.items() if value)


def caption(store: Store) -> str:
    """The common settings in a line: `CIFAR-10 (1,000 images), 10 IID clients, …; mean ± std over 2 seeds`."""
    parts = [data(store), clients(store), cohort(store), network(store), length(store), noise(store)]
    seeds = sorted({int(n) for n in store.runs.groupby("cell")["seed"].nunique()})
    over = counted(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {counted(seeds[-1], 'seed')}"
    said = ", ".join(part for part in parts if part)
    if seeds == [1]:
        return f"{said}; one seed" if said else "one seed"
    return f"{said}; mean ± std over {over}" if said else f"mean ± std over {over}"


def data(store: Store) -> str:
    """`CIFAR-10 (JPEG copy, 1,000 images)`."""
    if "dataset" not in store.common:
        return ""
    runs = store.runs[store.runs["kind"] == "method"]
    told = sorted(set(runs["data"]) - {"", str(store.common["dataset"])})
    name = told[0] if len(told) == 1 else word(DATA, str(store.common["dataset"]))
    base, _, inside = word(DATA, name).removesuffix(")").partition(" (")
    samples = sorted({int(n) for n in runs["samples"].dropna()})
    if not samples and isinstance(store.common.get("dataset.subset"), int):
        samples = [int(store.common["dataset.subset"])]
    counts = [f"{samples[0]:,} images" if len(samples) == 1 else ""]
    more = [f"{key.rpartition('.')[2]} {show(value)}" for key, value in _shown(store.common, "dataset", ("imbalance",))]
    brackets = ", ".join(part for part in (inside, *counts, *more) if part)
    return f"{base} ({brackets})" if brackets else base


def clients(store: Store) -> str:
    """`10 IID clients`, or `100 clients, Dirichlet (β=0.5)`."""
    numbers = sorted({int(n) for n in store.runs.loc[store.runs["kind"] != "centralised", "clients"].dropna()})
    if len(numbers) != 1 or "num_clients" not in store.common:
        return ""
    if "partition" not in store.common:
        return counted(numbers[0], "client")
    partition = str(store.common["partition"])
    if partition == "iid":
        return f"{numbers[0]:,} IID client{'' if numbers[0] == 1 else 's'}"
    values = " ".join(f"{_symbol(key)}={show(value)}" for key, value in _shown(store.common, "partition"))
    return f"{counted(numbers[0], 'client')}, {word(PARTITIONS, partition)}" + (f" ({values})" if values else "")


def cohort(store: Store) -> str:
    """`5 a round`."""
    common = store.common
    if not {"num_clients", "fraction"} <= common.keys():
        return ""
    return f"{max(1, math.floor(common['fraction'] * common['num_clients'] + 1e-9)):,} a round"


def network(store: Store, *, everything: bool = False) -> str:
    """`LeNet-5`."""
    if "model" not in store.common:
        return ""
    values = [f"{key.rpartition('.')[2]}={show(v)}" for key, v in _shown(store.common, "model") if v is not None]
    name = word(NETWORKS, str(store.common["model"]))
    return f"{name} ({', '.join(values)})" if everything and values else name


def length(store: Store) -> str:
    """`12 rounds × 2 epochs`."""
    parts = [counted(int(store.common["rounds"]), "round")] if "rounds" in store.common else []
    parts += [counted(int(store.common["local.epochs"]), "epoch")] if "local.epochs" in store.common else []
    return " × ".join(parts)


def noise(store: Store, *, everything: bool = False) -> str:
    """`τ = 0.5`, or the kind of noise where it has no parameters."""
    common = store.common
    if "noise" not in common:
        return ""
    kind = str(common["noise"])
    if kind in WHOLE:
        return word(NOISES, kind)
    values = [
        f"{_symbol(key)} = {show(value)}"
        for key, value in _shown(common, "noise")
        if everything or (isinstance(value, float | int) and not isinstance(value, bool))
    ]
    named = everything or kind != "rho_tau"  # ρ and τ are known by their letters
    return ", ".join([*([word(NOISES, kind)] if named else []), *values])


def _shown(common: Mapping[str, Any], group: str, only: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """The common settings of a group that a reader may want to know, in their order."""
    found = [(key, value) for key, value in common.items() if key.startswith(f"{group}.")]
    leaves = [(key, value, key.rsplit(".", 1)[-1]) for key, value in found]
    return [
        (key, value)
        for key, value, leaf in leaves
        if not leaf.startswith("_") and leaf not in QUIET and value is not None and (not only or leaf in only)
    ]


def _budget(store: Store) -> str:
    common, per_round = store.common, cohort(store).split(" ")[0].replace(",", "")
    if "rounds" not in common or not per_round:
        return length(store)
    return f"{length(store)}: {counted(int(common['rounds']) * int(per_round), 'client update')} for every method"


def _local(common: Mapping[str, Any]) -> str:
    parts = []
    for key, value in _shown(common, "local"):
        leaf = key.rsplit(".", 1)[-1]
        if leaf != "epochs" and not isinstance(value, str):
            parts.append(f"{LOCAL.get(leaf, leaf.replace('_', ' '))} {show(value)}")
        elif isinstance(value, str):
            parts.append(f"{leaf.replace('_', ' ')} {value}")
    return ", ".join(parts)


def _evaluation(common: Mapping[str, Any]) -> str:
    if "eval_every" not in common:
        return ""
    every = int(common["eval_every"])
    rhythm = "after every step" if every == 1 else f"after every {every} steps and after each of the last {LAST}"
    return f"{rhythm} of the budget, on the test set"


def _seeds(store: Store) -> str:
    seeds = sorted({str(seed) for seed in store.runs["seed"]}, key=lambda s: (len(s), s))
    return ", ".join(seeds) if len(seeds) <= 10 else f"{len(seeds)}: {seeds[0]} to {seeds[-1]}"


def _symbol(key: str) -> str:
    leaf = key.rsplit(".", 1)[-1]
    return SYMBOLS.get(leaf, leaf)
