"""From the overrides of `fnll sweep` to the list of its runs, in Hydra's own grammar.

A grid is the product of three things: the cells of the experiment (a list, since papers' grids are often not products),
its params, and the sweeps on the command line. Overrides on the command line replace cells' and params' values of the
same setting.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf

from fnll.errors import UserError, require
from fnll.harness.choices import options
from fnll.harness.config import command, compose, in_new_words
from fnll.harness.label import flattened
from fnll.harness.mistakes import explain
from fnll.harness.trust import allowed
from fnll.sweep import for_methods
from fnll.sweep.paper_tables import PAPER, asked_size, is_table, selected, smaller

MOST = 100_000  # runs of one sweep
CELLS = "cells"
EXPERIMENT, METHOD, SEED = "experiment", "method", "seed"

Assignment = dict[str, str]  # setting, without Hydra's +, ++ and ~ → the word that sets it


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep, as `fnll run` would be asked for it."""

    words: tuple[str, ...]
    method: str
    label: str = ""  # what tells it from the others, besides method and seed
    seed: str = ""
    config_dirs: tuple[Path, ...] = ()
    allowed: tuple[str, ...] = ()  # modules that the user trusts

    @property
    def command(self) -> str:
        """What to type to do this run alone."""
        return command(self.words, self.config_dirs, self.allowed)

    def __str__(self) -> str:
        return " ".join(part for part in (self.method, self.label, self.seed and f"seed {self.seed}") if part)


@dataclass(frozen=True)
class Grid:
    """The runs of a sweep, and the settings of its launcher."""

    runs: tuple[PlannedRun, ...]
    settings: Mapping[str, Any]  # the config node `sweep`


def expand(words: Sequence[str], config_dirs: Sequence[Path] = ()) -> Grid:
    """The runs that these words ask for. Duplicates are dropped; the seed varies slowest, the method fastest."""
    dirs = tuple(Path(folder).resolve() for folder in config_dirs)
    own = parse(in_new_words(words), dirs)
    control, special = _control(own), for_methods.taken_from(own, dirs)
    mini = asked_size(own)
    found: list[tuple[Assignment, str]] = []
    settings: dict[str, Any] = {}
    for experiment in own.pop(EXPERIMENT, [""]):
        chosen = {EXPERIMENT: experiment} if experiment else {}
        base = compose([*chosen.values(), *control], dirs)
        node: Any = OmegaConf.to_container(base.cfg.sweep)
        settings = settings or node
        cells, rest = _cells(node[CELLS]), dict(own)
        if mini:
            world, cells = smaller(cells, _value(rest.pop(PAPER, [base.choices[PAPER]])[0]), node["mini"])
            chosen = {**chosen, PAPER: f"{PAPER}={world}"}
            node = OmegaConf.to_container(compose([*chosen.values(), *control], dirs).cfg.sweep)  # with its trials
        if is_table(node[CELLS]):
            cells, rest = selected(cells, rest)
        for assignment in _assignments(cells, node, rest, dirs):
            its = special.get(_value(assignment.get(METHOD, base.name)), {})
            found += [({**chosen, **one}, base.name) for one in for_methods.extended(assignment, its)]
    methods = [_value(assignment.get(METHOD, name)) for assignment, name in found]
    for_methods.require_used(special, methods)
    for_methods.require_shared(own, methods, dirs)
    unique = {tuple(assignment.values()): (assignment, name) for assignment, name in found}
    labels = _labels([assignment for assignment, _ in unique.values()], dirs)
    runs = [
        PlannedRun(
            words, _value(assignment.get(METHOD, name)), label, _value(assignment.get(SEED, "")), dirs, allowed()
        )
        for (words, (assignment, name)), label in zip(unique.items(), labels, strict=True)
    ]
    return Grid(tuple(runs), settings)


def shard(runs: Sequence[PlannedRun], part: str) -> tuple[PlannedRun, ...]:
    """Every n-th run: `2/8` is the second of eight parts that together are the whole."""
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    i, n = (int(match[1]), int(match[2])) if match else (0, 0)
    require(1 <= i <= n, f"--shard is PART/PARTS with 1 <= PART <= PARTS, got {part!r}; 2/8 is the second of eight")
    return tuple(runs[i - 1 :: n])


def parse(words: Iterable[str], config_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Each setting with the words that its values make; the last word for a setting counts."""
    words = list(words)
    for word in words:
        require("=" in word or word.startswith("~"), f"{word!r} is not a setting; type SETTING=VALUE, as in seed=0,1")
    parser = OverridesParser.create(cast(ConfigLoader, _Choices(config_dirs)))
    try:
        overrides = parser.parse_overrides(words)
        return {_key(override): _alternatives(override, config_dirs) for override in overrides}
    except HydraException as error:
        raise explain(error, config_dirs) from None


class _Choices:
    """The part of Hydra's config loader that `glob(...)` asks."""

    def __init__(self, config_dirs: Sequence[Path]) -> None:
        self.config_dirs = config_dirs

    def get_group_options(self, group_name: str, results_filter: ObjectType | None = None) -> list[str]:
        return sorted(options(group_name, self.config_dirs))


def _key(override: Override) -> str:
    """The setting that an override is about, whatever it does to it."""
    return override.get_key_element().lstrip("+~")


def _alternatives(override: Override, config_dirs: Sequence[Path]) -> list[str]:
    word = str(override.input_line)
    if not override.is_sweep_override():
        return [word]
    require(override.is_discrete_sweep(), f"{word}: an interval has no list of values; use range(...) or commas")
    values = list(islice((f"{override.get_key_element()}={v}" for v in override.sweep_string_iterator()), MOST + 1))
    require(len(values) <= MOST, f"{word} gives more than {MOST} values; a sweep has at most that many runs")
    if not values:
        known = ", ".join(sorted(options(override.key_or_group, config_dirs)))
        raise UserError(f"{word} gives no value" + (f"; choose from: {known}" if known else ""))
    return values


def _control(own: dict[str, list[str]]) -> list[str]:
    """Take the words about the sweep itself out of `own`."""
    keys = [key for key in own if key == "sweep" or key.startswith("sweep.")]
    for key in keys:
        require(len(own[key]) == 1, f"{key} is about the sweep as a whole and cannot be swept over")
    store = own.get("runs_dir", [""])
    require(len(store) == 1, f"runs_dir is one folder for the whole sweep, got {len(store)}; type runs_dir=DIR")
    return [own.pop(key)[0] for key in keys]


def _assignments(
    cells: list[Assignment], node: Mapping[str, Any], own: dict[str, list[str]], dirs: Sequence[Path]
) -> list[Assignment]:
    """The product of cells, params and own words."""
    params = parse((f"{key}={value}" for key, value in (node["params"] or {}).items()), dirs)
    both = sorted({key for cell in cells for key in cell} & set(params))
    require(not both, f"{', '.join(both)} is in sweep.cells and in sweep.params; leave it in one of them")
    axes: dict[str, list[Assignment]] = {CELLS: [_without(cell, own) for cell in cells]}
    for key, alternatives in {**params, **own}.items():
        axes[key] = [{key: word} for word in alternatives]
    order = [*params, *dict.fromkeys(key for cell in cells for key in cell), *own]
    rank = {SEED: 0, CELLS: 1, METHOD: 3}  # a store fills seed by seed, and methods meet the same scenario in a row
    slowest_first = sorted(axes, key=lambda key: rank.get(key, 2))
    number = math.prod(len(axis) for axis in axes.values())
    require(number <= MOST, f"this grid has {number} runs, and a sweep at most {MOST}; leave out some values")
    products = itertools.product(*(axes[key] for key in slowest_first))
    merged = ({key: word for part in parts for key, word in part.items()} for parts in products)
    return [{key: one[key] for key in dict.fromkeys(order) if key in one} for one in merged]


def _without(cell: Assignment, own: Iterable[str]) -> Assignment:
    """What is left of a cell; with `partition=iid` in `own`, a cell's `partition: shards` goes with its settings."""
    replaced = [key for key in own if key in cell]
    below = tuple(f"{key}." for key in replaced)
    return {key: word for key, word in cell.items() if key not in replaced and not key.startswith(below)}


def _cells(cells: Any) -> list[Assignment]:
    if not isinstance(cells, list) or not cells or not all(isinstance(cell, dict) for cell in cells):
        raise UserError(f"sweep.cells is a list of mappings such as [{{noise.rho: 0.4, noise.tau: 0}}], got {cells}")
    return [{key.lstrip("+~"): _word(key, value) for key, value in cell.items()} for cell in flattened(cells)]


def _word(key: str, value: Any) -> str:
    """`key=value` such that Hydra's grammar gives back this very value."""
    parser = OverridesParser.create()
    override = parser.parse_override(f"{key}=null")
    for candidate in (value, _quoted(value)):
        override._value = candidate
        word = f"{key}={override.get_value_element_as_str()}"
        try:
            parsed = parser.parse_override(word)
        except HydraException:
            continue
        if not parsed.is_sweep_override() and parsed.value() == value:
            return word
    raise UserError(f"sweep.cells: {key} cannot have the value {value!r}")


def _quoted(value: Any) -> Any:
    """The same with every string in quotes."""
    if isinstance(value, str):
        return QuotedString(value, Quote.single)
    if isinstance(value, list):
        return [_quoted(item) for item in value]
    return {key: _quoted(item) for key, item in value.items()} if isinstance(value, dict) else value


def _labels(assignments: Sequence[Assignment], config_dirs: Sequence[Path]) -> list[str]:
    """For each run, the values of the settings that differ between them: `rho=0.4`; of a group's choice its name."""
    keys = dict.fromkeys(key for one in assignments for key in one if key not in (METHOD, SEED))
    varying = [key for key in keys if len({one.get(key) for one in assignments}) > 1]
    said = {key: "" if options(key, config_dirs) else f"{key.rsplit('.', 1)[-1]}=" for key in varying}
    return [" ".join(said[key] + _value(one[key]) for key in varying if key in one) for one in assignments]


def _value(word: str) -> str:
    return word.partition("=")[2] if "=" in word else word
