"""The papers' worlds: which there are, whom they compare, and what the presets of 0.1 are called now."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from fnll.errors import UserError, nearest

GROUP = "paper"
NONE = "none"
HOMES = {  # whose settings a preset of 0.1 had, by data set
    "cifar10": "fedcorr",
    "cifar100": "fedcorr",
    "clothing1m": "fedcorr",
    "webvision_mini": "fedrn",
    "ich": "fednoro",
    "isic2019": "fednoro",
}
OF_FEDRN = ("fedrn", "fedrn_official", "coteaching", "selfie", "oracle_drop_noisy")  # also on CIFAR


def worlds(folders: Iterable[Path]) -> dict[str, Path]:
    """Every `paper=NAME/DATA`, with its file."""
    found = (path for folder in folders for path in sorted((folder / GROUP).glob("*/*.yaml")))
    return {f"{path.parent.name}/{path.stem}": path for path in found}


def compared(world: str, folders: Iterable[Path]) -> list[str] | None:
    """The methods that a paper compares; None: any."""
    path = worlds(folders).get(world)
    facts: dict[str, Any] = (yaml.safe_load(path.read_text()) or {}).get(GROUP, {}) if path else {}
    return facts.get("methods")


def of_preset(preset: str, method: str, dataset: str, folders: Iterable[Path]) -> str:
    """The world that a preset of 0.1 is now; `none` where `paper` was asked for and no paper has settings."""
    folders = list(folders)
    if preset == "shared":
        return NONE
    table, _, name = (f"{method}_{dataset}" if preset == "paper" else preset).rpartition("/")
    data = next((data for data in HOMES if name == data or name.endswith(f"_{data}")), None)
    whose = name.removesuffix(data or "").removesuffix("_")
    centralised = "_centralised" if whose.endswith("_centralised") else ""
    on_cifar = data in ("cifar10", "cifar100") and whose in OF_FEDRN
    paper = table.removesuffix("_tables") or ("fedrn" if on_cifar else HOMES.get(data or "", ""))
    world = f"{paper}/{data}{centralised}"
    if preset == "paper":
        return world if method in (compared(world, folders) or ()) else NONE
    if world not in worlds(folders):
        known = list(worlds(folders))
        raise UserError(f"there is no preset called {preset!r} any more; type paper=NAME/DATA, {nearest(world, known)}")
    return world
