"""`protocol`: whether a run's settings are those of its paper, found out by comparison and never believed.

A run in a paper's world is compared with what `paper=NAME/DATA method=METHOD` alone gives, and with every cell of the
paper's tables in that world. If it is one of these, its protocol is `paper`; otherwise it says in what it differs from
the nearest: `paper, but rounds 30 (100)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.singleton import Singleton

from fnll.errors import UserError, require
from fnll.harness.choices import GROUPS, config_dir, folders, inherited, options
from fnll.harness.config import Request, compose
from fnll.harness.identity import settings
from fnll.harness.paper_worlds import NONE, compared

FREE = (
    "seed",
    "scenario_seed",
    "protocol",
    "diagnostics_every",
    "diagnostics_samples",
    "diagnostics_uploads",
)  # no paper fixes these
OFFICIAL = "_official"
SAID = 3  # differences that a label spells out
ABSENT = "nothing"

Flat = dict[str, Any]  # dotted name → value; of a group, its name → the choice


def labelled(request: Request) -> Request:
    """`request` with the protocol that its settings really are."""
    world = request.choices.get("paper", NONE)
    typed = [word for word in request.overrides if word.lstrip("+").startswith("protocol=")]
    require(
        not typed, f"{' '.join(typed)}: protocol is found out, not set; type paper=NAME/DATA for a paper's settings"
    )
    if request.cfg.protocol == "shared":
        return request
    require(
        world != NONE, f"protocol is {request.cfg.protocol!r} without a paper; take it out of the config that sets it"
    )
    cfg = request.cfg.copy()
    cfg.protocol = label_of(request, world)
    return replace(request, cfg=cfg)


def not_compared(request: Request) -> str | None:
    """Why a method has no place in its world: the paper does not have it."""
    known = request.cfg.paper.methods
    if known is None or request.name in known:
        return None
    return (
        f"paper={request.choices['paper']} has no {request.name}: {request.cfg.paper.name}'s paper compares "
        f"{', '.join(known)}; to run it with the same settings all the same, type paper.methods=null"
    )


def label_of(request: Request, world: str) -> str:
    """`paper`, or `paper, but` and what differs from the nearest of the paper's own settings."""
    have = flat(request)
    want = reference(world, request.name, request.config_dirs)
    cells = [{}, *table_cells(world, request.name.removesuffix(OFFICIAL))]
    nearest = min((differences(have, with_cell(want, cell)) for cell in cells), key=len)
    if request.name not in (compared(world, folders(request.config_dirs)) or [request.name]):
        nearest = {"method": (request.name, "not in it"), **nearest}
    if not nearest:
        return "paper"
    said = [f"{name} {_short(now)} ({_short(then)})" for name, (now, then) in list(nearest.items())[:SAID]]
    more = len(nearest) - len(said)
    return "paper, but " + ", ".join(said) + (f" and {more} more" if more > 0 else "")


def differences(have: Flat, want: Flat) -> dict[str, tuple[Any, Any]]:
    """What two runs differ in: of a group with another choice, the choice alone."""
    found = {name: (have.get(name, ABSENT), want.get(name, ABSENT)) for name in {**want, **have}}
    found = {name: pair for name, pair in found.items() if pair[0] != pair[1]}
    groups = tuple(f"{name}." for name in found if name in GROUPS)
    return {name: pair for name, pair in sorted(found.items()) if not name.startswith(groups)}


def flat(request: Request) -> Flat:
    """A run's settings that can change its numbers, and its choices."""
    chosen = {group: name for group, name in request.choices.items() if group in GROUPS and group != "experiment"}
    given = {key: value for key, value in settings(request).items() if key not in FREE}
    given.setdefault("budget", "updates")
    return {**dict(_leaves(given)), **{name: chosen[name] for name in chosen.keys() & given.keys() - {"paper"}}}


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if name.startswith("_"):  # which class it is follows from the choice
            continue
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@cache
def reference(world: str, method: str, config_dirs: tuple[Path, ...]) -> Flat:
    """The settings of a method in a world, before any table or user changes them."""
    outside = Singleton.get_state()  # `fnll run` is inside Hydra's own main
    try:
        return flat(compose([f"paper={world}", f"method={method}"], config_dirs))
    finally:
        Singleton.set_state(outside)


@cache
def table_cells(world: str, method: str) -> tuple[Flat, ...]:
    """What the paper's own tables change in a world, for one method."""
    paper = world.partition("/")[0]
    found = []
    for path in sorted((config_dir() / "experiment" / "paper").glob(f"{paper}_*.yaml")):
        node = yaml.safe_load(path.read_text())
        stated = [entry for entry in node.get("defaults", []) if isinstance(entry, dict)]
        base = {key.removeprefix("override /"): value for entry in stated for key, value in entry.items()}
        for cell in flattened(node["sweep"]["cells"]):
            whole = {**base, **cell}
            if whole.get("paper") == world and whole.get("method", method) == method:
                found.append({key: value for key, value in whole.items() if key not in ("paper", "method")})
    return tuple(found)


def flattened(cells: Sequence[Mapping[str, Any]]) -> list[Flat]:
    """The cells of a grid, with `rows` and `columns` multiplied out."""
    found: list[Flat] = []
    for cell in cells:
        if "rows" in cell or "columns" in cell:
            rows, columns = cell.get("rows") or [{}], cell.get("columns") or [{}]
            found += [{**row, **column} for row in rows for column in columns]
        else:
            found.append(dict(cell))
    return found


def with_cell(want: Flat, cell: Flat) -> Flat:
    """A world's settings with those of a table's cell."""
    done = dict(want)
    for name, value in cell.items():
        group, _, place = name.partition("@")
        if group in GROUPS:
            node = place or group
            done = {key: old for key, old in done.items() if key != node and not key.startswith(f"{node}.")}
            done |= {f"{node}.{key}": leaf for key, leaf in _values(group, value)}
            done |= {} if place else {node: value}
        else:
            done[name] = value
    return done


@cache  # a paper's tables name the same few choices in all their cells
def _values(group: str, name: str) -> tuple[tuple[str, Any], ...]:
    """The settings of a choice that a table names."""
    known = options(group)
    if name not in known:
        raise UserError(f"a paper's table names {group}={name}, which there is not")
    return tuple((key, leaf) for key, leaf in _leaves(inherited(known[name])) if key not in ("defaults", "name"))


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
