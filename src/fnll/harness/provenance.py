"""How a scenario was made: what its file says about it, and what a run on that file says in turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fnll.errors import UserError
from fnll.harness.choices import options
from fnll.harness.config import Request
from fnll.scenario.file_format import about

FROM_FILE = ("partition", "noise", "num_clients", "scenario_seed")  # what decides nothing once there is a file
BUILD = "fnll.scenario.build"
PLACES = ("root", "download", "labels", "file")  # where a data set's files lie; its digest says what they are


def made_with(request: Request) -> dict[str, Any]:
    """The settings that made a scenario and the names of the choices, without anything about this machine."""
    cfg: Any = OmegaConf.to_container(request.cfg)
    dataset = {key: value for key, value in cfg["dataset"].items() if key not in PLACES}
    made = {"dataset": dataset, **{key: cfg[key] for key in FROM_FILE}}
    names = {group: request.choices[group] for group in ("dataset", "partition", "noise") if group in request.choices}
    return {**_without_folders(made), "choices": names}


def described(request: Request) -> Request:
    """For `scenario=file`: the request with the file's settings in place of those that the file makes idle.

    The run is then known by how its scenario was made, whichever way it got here: reports name its partition and noise,
    and it is the same run, with the same id, as on the scenario built anew. Idle settings that were typed and say
    something else than the file are refused, since they would be believed to count.
    """
    path = OmegaConf.select(request.cfg, "scenario.path")
    if path is None:
        return request
    facts = about(path)
    made = _settings(facts, request.config_dirs)
    cfg: Any = OmegaConf.to_container(request.cfg)
    for key in FROM_FILE:
        typed = [word for word in request.overrides if re.match(rf"\+{{0,2}}{key}[.=]", word)]
        if typed and made[key] != cfg[key]:
            raise UserError(
                f"scenario=file takes {key} from the file, and {path} has {_short(made, key)}; leave "
                f"out {' '.join(typed)}, or type scenario=build to build a scenario with it"
            )
        cfg[key] = made[key]
    for key in cfg["dataset"].keys() & made["dataset"].keys() & {"validation", "seed"}:
        cfg["dataset"][key] = made["dataset"][key]  # the split is in the file, too
    cfg["scenario"].pop("path")
    cfg["scenario"]["_target_"] = BUILD
    names = {group: made["choices"].get(group, "file") for group in ("partition", "noise")}
    return replace(request, cfg=OmegaConf.create(cfg), choices={**request.choices, **names})


def _settings(facts: Mapping[str, Any], config_dirs: Sequence[Path]) -> dict[str, Any]:
    """What the file says it was made with; a file that does not say is told from others by its fingerprint."""
    unknown = {"fingerprint": facts["fingerprint"]}
    idle = {"dataset": {}, "partition": unknown, "noise": unknown, "scenario_seed": 0, "choices": {}}
    known = {key: value for key, value in facts["made"].items() if key in idle}
    made = {**idle, **known, "num_clients": facts["clients"]}
    if not all(isinstance(made[key], type(value)) for key, value in idle.items()):
        raise UserError(f"the scenario file with fingerprint {facts['fingerprint']} has invalid build settings")
    return {**made, **{group: _trusted(made[group], _targets(group, config_dirs)) for group in ("partition", "noise")}}


def _targets(group: str, config_dirs: Sequence[Path]) -> set[str]:
    found = (re.findall(r"_target_:\s*(\S+)", path.read_text()) for path in options(group, config_dirs).values())
    return {target for targets in found for target in targets}


def _trusted(node: Any, targets: set[str]) -> Any:
    """`node` without names of code that is not a choice here, so that no later reader of the config may call it."""
    if isinstance(node, list):
        return [_trusted(value, targets) for value in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _trusted(value, targets) for key, value in node.items() if key != "_target_"}
    target = _today(node.get("_target_"), targets)
    return kept if target is None else {"_target_": target, **kept}


def _today(target: Any, targets: set[str]) -> str | None:
    """Where a class of ours lies now that an older file names by its module of then; None: nobody knows it here."""
    name = _own_name(target)
    alike = [known for known in targets if known == target or (name and _own_name(known) == name)]
    return target if target in alike else alike[0] if len(alike) == 1 else None


def _own_name(target: Any) -> str | None:
    return target.rpartition(".")[2] if isinstance(target, str) and target.startswith("fnll.") else None


def _without_folders(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_folders(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_without_folders(value) for value in node]
    return Path(node).name if isinstance(node, str) and Path(node).is_absolute() else node


def _short(made: Mapping[str, Any], key: str) -> str:
    if key in ("partition", "noise"):
        settings = [f"{key}.{name}={value}" for name, value in made[key].items() if not isinstance(value, dict)]
        return " ".join([f"{key}={made['choices'].get(key, 'file')}", *(s for s in settings if "._" not in s)])
    return f"{key}={made[key]}"
