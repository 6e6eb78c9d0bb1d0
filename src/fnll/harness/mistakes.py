"""Mistakes in words and config files: Hydra's errors in plain words, and settings that nothing reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fnll.errors import UserError, nearest
from fnll.harness.choices import CONFIG_NAME, GROUPS, config_dir, folders, inherited, options
from fnll.harness.groups import check_groups
from fnll.harness.paper_worlds import worlds

MISTAKES = (HydraException, OmegaConfBaseException, yaml.YAMLError)  # what a wrong word or file makes Hydra raise
INTERNALS = ("full_key:", "object_type=", "reference_type=", "See https://")  # of OmegaConf's messages


def explain(error: Exception, config_dirs: Sequence[Path] = ()) -> UserError:
    """A Hydra or OmegaConf error in plain words, with the nearest names that exist."""
    text = str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        place = f"{mark.name}, line {mark.line + 1}" if mark else "a config file"
        return UserError(f"{place} is not YAML: {error.problem}")
    if isinstance(error, OverrideParseException):
        reason = re.sub(
            r"(^(Error when parsing index.*\n)?Error parsing override '.*'\n)|(\n*See https://.*)", "", text
        ).strip()
        return UserError(
            f"cannot read {error.override!r} ({reason}); type SETTING=VALUE, quoted if it holds brackets or spaces"
        )
    several = re.search(r"Ambiguous value for argument '(?P<word>.*)'\n", text)
    if several:
        return UserError(f"{several['word']} has several values; type `fnll sweep {several['word']}` to run them all")
    missing = re.search(r"Could not find '(?P<group>[\w/]+)/(?P<name>[^'/]+)'", text)
    if missing and missing["group"].partition("/")[0] == "paper":
        name = f"{missing['group']}/{missing['name']}".removeprefix("paper/")
        return UserError(f"there is no paper={name}; {nearest(name, worlds(folders(config_dirs)))}")
    if missing:
        group, name = missing["group"], missing["name"]
        known = options(group, config_dirs) if group.partition("/")[0] in GROUPS else {}
        hint = nearest(name, known) if known else "see `fnll run --help`"
        return UserError(f"there is no {group} called {name!r}; {hint}")
    unknown = re.search(r"Could not override '(?P<key>[^']+)'", text) or re.search(
        r"Key '(?P<key>[^']+)' is not in", text
    )
    if unknown:
        key = unknown["key"]
        return _elsewhere(key, error, config_dirs) or _no_setting(key)
    value = re.search(r"Missing mandatory value: (?P<key>\S+)", text)
    if value:
        full = getattr(error, "full_key", None) or value["key"]
        return UserError(f"{full} has no value; type {full}=...")
    told = [line.strip() for line in text.splitlines() if not line.strip().startswith(INTERNALS)]
    return UserError(" ".join(line for line in told if line) or type(error).__name__)


def _no_setting(key: str) -> UserError:
    hint = nearest(key, known_keys(key))
    if not hint.startswith("did you mean"):
        hint = "`fnll run --cfg job` prints every setting"  # all of them would hide the message
    return UserError(f"there is no setting called {key!r}; {hint}")


def _elsewhere(key: str, error: Exception, config_dirs: Sequence[Path]) -> UserError | None:
    """The message about a setting that other choices of its group have, but not the one that was made."""
    group, _, setting = key.partition(".")
    choices = options(group, config_dirs) if group in GROUPS else {}
    having = [name for name, path in choices.items() if key in _leaves(inherited(path), f"{group}.")]
    if not having:
        return None
    node = getattr(error.__cause__, "parent_node", None)  # the group's own node, where the setting was looked for
    target = node.get("_target_") if isinstance(node, DictConfig) else None
    chosen = [name for name, path in choices.items() if target and inherited(path).get("_target_") == target]
    subject = f"{group}={chosen[0]}" if len(chosen) == 1 else f"the chosen {group}"
    return UserError(f"{subject} has no setting {setting!r}; these choices of {group} have it: {', '.join(having)}")


def check_keys(cfg: dict[str, Any]) -> None:
    """Refuse settings that nothing reads: a misspelt one in a YAML, or behind `+`, would be believed to count."""
    known = _top_level()
    check_groups(cfg)
    expected = known.keys() - {"defaults", "hydra"}
    for prefix, given, names in (
        ("", cfg, expected),
        *((f"{group}.", cfg[group], known[group].keys()) for group in ("eval", "sweep", "paper")),
    ):
        for key in given.keys() - names - (set() if prefix else set(GROUPS)):
            raise _no_setting(prefix + key)
        for key in sorted(names - given.keys()):
            raise UserError(f"{prefix}{key} has no value; type {prefix}{key}=...")


@cache  # every run of a grid asks
def _top_level() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((config_dir() / f"{CONFIG_NAME}.yaml").read_text())
    return found


def known_keys(key: str) -> list[str]:
    """Every setting of the default config and of all choices of the group that `key` is in."""
    group = key.split(".")[0]
    keys: set[str] = set(GROUPS)
    sources = [(config_dir() / f"{CONFIG_NAME}.yaml", "")]
    groups = [group] if group in GROUPS else [name for name in GROUPS if name not in ("paper", "experiment")]
    sources += [(path, f"{name}.") for name in groups for path in options(name).values()]
    for path, prefix in sources:
        keys |= _leaves(yaml.safe_load(path.read_text()) or {}, prefix)
    return sorted(keys)


def _leaves(node: Any, prefix: str) -> set[str]:
    if not isinstance(node, dict):
        return set()
    found = set()
    for name, value in node.items():
        if str(name).startswith("_") or name in ("defaults", "hydra"):
            continue
        found.add(f"{prefix}{name}")
        found |= _leaves(value, f"{prefix}{name}.")
    return found
