"""Whose code a config may name. A `_target_` is called, so a config from elsewhere must not name whatever it likes.

Trusted are the targets of packaged YAMLs and of installed plugins, classes of this package, and the modules that the
user names: `fnll run --allow my_methods ...`. The choice holds for the process; sweeps hand it on to theirs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from fnll.errors import UserError

STATED = re.compile(r"^\s*(?:-\s*)?_target_:\s*[\"']?([\w.]+)", re.MULTILINE)
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
OURS = ("methods", "models", "executors", "scenario", "local", "testing")  # rooms whose classes a config may name
HYDRAS = ("hydra._internal.core_plugins.", "hydra_plugins.")  # launchers and sweepers
LOGGING = ("logging.", "colorlog.")

_allowed: set[str] = set()


def allow(*names: str) -> None:
    """Trust modules or packages from now on."""
    for name in names:
        if not DOTTED.fullmatch(name):
            raise UserError(f"--allow takes the name of a module, got {name!r}; type for example --allow my_methods")
    _allowed.update(names)


def allowed() -> tuple[str, ...]:
    """What the user has named, in alphabetical order."""
    return tuple(sorted(_allowed))


def used(config: object) -> tuple[str, ...]:
    """Of what the user has named, what a config makes use of."""
    named = [target for _, target in targets(config)]
    return tuple(name for name in allowed() if any(target.startswith(f"{name}.") for target in named))


def taken_from(words: Sequence[str]) -> list[str]:
    """`words` without `--allow NAME`, which is heeded; for a command that does not know the option itself."""
    rest, names = [], []
    ahead = iter(words)
    for word in ahead:
        if word == "--allow":
            names.append(next(ahead, ""))
        elif word.startswith("--allow="):
            names.append(word.partition("=")[2])
        else:
            rest.append(word)
    allow(*(part for name in names for part in name.split(",")))
    return rest


def require_trusted(config: object, folders: Sequence[Path], plugins: Sequence[str], *, unseen: bool = False) -> None:
    """Refuse a config that names code which nobody vouches for; `folders` hold the YAMLs of ours and of plugins.

    `unseen`: go by the name alone and import nothing, for who only reads what the source says.
    """
    for place, target in targets(config):
        if not (_vouched(target, tuple(folders), plugins) and (unseen or _trusted(target, tuple(folders)))):
            module = target.rpartition(".")[0]
            raise UserError(
                f"{place or 'the config'} names {target}, which is neither a class of fnll nor of an installed plugin; "
                f"if you trust that code, type --allow {module.partition('.')[0] or target}"
            )


def require_trusted_hydra(node: Any) -> None:
    """The same for Hydra's own part of a config: what it would call before or after a run."""
    for place, target in targets(node.get("callbacks") or {}):
        if not _named(target):
            raise UserError(f"hydra.callbacks.{place} names {target}; if you trust that code, type --allow {target}")
    for part in ("launcher", "sweeper"):
        for _, target in targets(node.get(part) or {}):
            if not target.startswith(HYDRAS) and not _named(target):
                raise UserError(f"hydra.{part} names {target}, which is no plugin of Hydra's; leave it out")
    for part in ("job_logging", "hydra_logging"):
        for name in _factories(node.get(part) or {}):
            if not name.startswith(LOGGING) and not _named(name):
                raise UserError(f"hydra.{part} names {name}, which is no part of Python's logging; leave it out")


def targets(node: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Where a config names which targets."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield place, str(node["_target_"])
        for key, value in node.items():
            yield from targets(value, f"{place}.{key}" if place else str(key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from targets(value, f"{place}[{i}]")


def _factories(node: object) -> Iterator[str]:
    """What a logging config would call."""
    if isinstance(node, dict):
        yield from (str(node[key]) for key in ("()", "class") if key in node)
        for value in node.values():
            yield from _factories(value)


def _vouched(target: str, folders: tuple[Path, ...], plugins: Sequence[str]) -> bool:
    top = target.partition(".")[0]
    return target in stated_in(folders) or _named(target) or top in plugins or top == "fnll"


def _trusted(target: str, folders: tuple[Path, ...]) -> bool:
    if target in stated_in(folders):
        return True
    top = target.partition(".")[0]
    found = _located(target)
    if found is None:
        return True  # what does not exist harms nobody, and is explained later
    home = str(getattr(found, "__module__", None) or "")
    if home.partition(".")[0] != top and not _named(home):
        return False  # `mine.os.system` is not mine
    return top != "fnll" or _named(target) or (inspect.isclass(found) and home.split(".")[1] in OURS)


def _named(target: str) -> bool:
    return any(target == name or target.startswith(f"{name}.") for name in _allowed)


@cache
def stated_in(folders: tuple[Path, ...]) -> frozenset[str]:
    """Every target that a YAML in these folders, or one of these files, states."""
    files = (path for place in folders for path in ([place] if place.is_file() else place.rglob("*.yaml")))
    return frozenset(target for path in files for target in STATED.findall(path.read_text()))


def _located(target: str) -> object:
    """What Hydra would find under a dotted name; None if there is nothing, or if importing it fails."""
    parts = target.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except Exception:  # no module of that name, or one with a mistake of its own
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found
    return None
