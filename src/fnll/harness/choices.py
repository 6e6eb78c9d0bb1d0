"""Where configs lie, ours and those of plugins, and which choices each group of settings has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from fnll.errors import UserError, require

CONFIG_NAME = "run"  # the file that all others are chosen from
ENTRY_POINTS = "fnll.configs"
GROUPS = (
    "scenario",
    "dataset",
    "partition",
    "noise",
    "model",
    "local",
    "method",
    "executor",
    "logger",
    "paper",
    "experiment",
)


def config_dir() -> Path:
    """The configs: inside the installed package, or at the top of the source tree."""
    inside = Path(str(files("fnll"))) / "configs"
    return inside if inside.is_dir() else Path(__file__).resolve().parents[3] / "configs"


def folders(config_dirs: Sequence[Path] = ()) -> list[Path]:
    """Every folder of configs: ours, the plugins', and those that were named."""
    for folder in config_dirs:
        require(Path(folder).is_dir(), f"--config-dir {folder} is no folder; give one that holds configs")
    return [config_dir(), *plugin_dirs().values(), *config_dirs]


@cache  # reading the metadata of every installed package takes as long as composing a config
def plugin_dirs() -> dict[str, Path]:
    """Config folders of other installed packages, by the name under which they registered."""
    found: dict[str, Path] = {}
    for point in entry_points(group=ENTRY_POINTS):
        folder = _plugin_dir(point)
        if found.setdefault(point.name, folder) != folder:
            raise UserError(
                f"two installed packages register {ENTRY_POINTS} under the name {point.name!r}: {found[point.name]} "
                f"and {folder}; rename one of the entry points or uninstall one of the packages"
            )
    return found


@cache
def plugin_packages() -> tuple[str, ...]:
    """The top names of installed packages that registered configs: whoever installs a package trusts its code."""
    return tuple(point.value.partition(":")[0].partition(".")[0] for point in entry_points(group=ENTRY_POINTS))


def _plugin_dir(point: EntryPoint) -> Path:
    package, _, inside = point.value.partition(":")
    who = f"the installed package {point.dist.name if point.dist else package!r} registers {point.value!r} with fnll"
    try:
        folder = Path(str(files(package))) / inside
    except Exception as error:  # whatever importing somebody's package may raise
        raise UserError(f"{who}, but importing it fails: {error}; fix or uninstall it") from error
    if not folder.is_dir():
        raise UserError(f"{who}, but there is no folder {folder}; fix or uninstall it")
    return folder


def options(group: str, extra: Sequence[Path] = ()) -> dict[str, Path]:
    """The choices of a config group, ours and the plugins'; two packages with the same name are refused."""
    found: dict[str, Path] = {}
    for folder in folders(extra):
        for path in sorted((folder / group).glob("*.yaml")):
            if path.stem in found and found[path.stem] != path:
                raise UserError(
                    f"{group}={path.stem} is defined twice: in {found[path.stem]} and in {path}; "
                    "rename one of them or uninstall one of the packages"
                )
            found[path.stem] = path
    return found


def inherited(path: Path) -> dict[str, Any]:
    """A choice's settings with those of the choices it starts from."""
    own = yaml.safe_load(path.read_text()) or {}
    bases = [path.with_name(f"{base}.yaml") for base in own.get("defaults", []) if isinstance(base, str)]
    return {key: value for base in bases if base.exists() for key, value in inherited(base).items()} | own
