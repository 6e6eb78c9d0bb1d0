"""What a run is called: by a hash of everything that can change its numbers, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from fnll import NUMBERS
from fnll.harness.choices import GROUPS, config_dir
from fnll.harness.config import Request

NOT_IDENTITY = ("executor", "logger", "runs_dir", "device", "checkpoint_seconds", "paper", "experiment", "sweep")
WITHIN = {
    "eval": ("overlap",),
    "dataset": (
        *("root", "download", "labels", "file"),  # where the data lie; the fingerprint says what they are
        *("clean", "holdout"),  # told by the noise, and by the fingerprint
    ),
    "scenario": ("path",),
}
BUILT = ("partition", "noise", "scenario")  # groups that the fingerprint tells the outcome of
VERSIONED = ("fnll", "torch", "torchvision", "lightning")  # told by NUMBERS and in the manifest


def run_id(request: Request, **facts: object) -> str:
    """`<method>-<12 hex>`: of the settings, the code that others bring, and `facts` that the settings do not say."""
    config = settings(request)
    code = code_of(config)
    named = _named(config, packaged_names(config_dir()))
    identity = {"config": named, "numbers": NUMBERS, **facts, **({"code": code} if code else {})}
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return f"{request.name}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def settings(request: Request) -> dict[str, Any]:
    """The settings that can change numbers."""
    config: Any = OmegaConf.to_container(request.cfg)
    for key in NOT_IDENTITY:
        config.pop(key, None)
    for group, names in WITHIN.items():
        for name in names if isinstance(config[group], dict) else ():
            config[group].pop(name, None)
    config["protocol"] = config["protocol"].partition(",")[0]  # in what settings differ follows from them
    if config["budget"] == "updates":  # runs of earlier versions, which had no other, keep their names
        del config["budget"]
    if not config["diagnostics_uploads"]:  # likewise
        del config["diagnostics_uploads"]
    return config


@cache  # reads every YAML of these groups
def packaged_names(folder: Path) -> dict[str, str]:
    """The targets that packaged choices state, each under a name that outlives a move: `method/fedcorr`.

    Where several choices state one target, the shortest of their names counts, so `NAME` before `NAME_official`. What
    a choice holds inside has its place for a name, `noise/h_idn.annotator`, unless it is a choice of its own.
    """
    groups = [group for group in GROUPS if group not in NOT_IDENTITY]
    files = [(group, path) for group in groups for path in (folder / group).glob("*.yaml")]
    stated = [
        (place, target)
        for group, path in files
        for place, target in _places(yaml.safe_load(path.read_text()), f"{group}/{path.stem}")
    ]
    last_counts = sorted(stated, key=lambda pair: ("." in pair[0], len(pair[0]), pair[0]), reverse=True)
    return {target: place for place, target in last_counts}


def _places(node: object, place: str) -> Iterator[tuple[str, str]]:
    """Where in a YAML which targets are stated."""
    if isinstance(node, dict):
        if isinstance(node.get("_target_"), str):
            yield place, node["_target_"]
        for key, value in node.items():
            yield from _places(value, f"{place}.{key}")


def _named(node: Any, names: Mapping[str, str]) -> Any:
    """`node` with names in place of the targets that have one: no dotted path holds a slash, so none is mistaken."""
    if isinstance(node, list):
        return [_named(value, names) for value in node]
    if not isinstance(node, dict):
        return node
    named = {key: _named(value, names) for key, value in node.items()}
    if isinstance(named.get("_target_"), str):
        named["_target_"] = names.get(named["_target_"], named["_target_"])
    return named


def code_of(config: dict[str, Any]) -> dict[str, str]:
    """Hashes of the modules and packages outside `fnll` that `config` takes things from.

    A plugin is edited without anything like `fnll.NUMBERS` changing; so its source is part of what a run is. Zipped
    packages, and what a module imports from elsewhere, are not looked at.
    """
    counting = {group: node for group, node in config.items() if group not in BUILT}
    return {top: digest for top in plugins_of(counting) if (digest := source_digest(top))}


def plugins_of(config: Mapping[str, Any]) -> list[str]:
    """The modules and packages of others that `config` takes things from, by their top names."""
    return sorted({target.split(".")[0] for target in targets(dict(config))}.difference(VERSIONED))


def targets(node: object) -> Iterator[str]:
    """Every `_target_` in a config."""
    if isinstance(node, dict):
        if isinstance(node.get("_target_"), str):
            yield node["_target_"]
        for value in node.values():
            yield from targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from targets(value)


@cache  # a process hardly ever outlives an edit
def source_digest(name: str) -> str | None:
    """A hash of a module's source, or of all Python files of a package; None if there is none to read."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations is None:
        files = {"": Path(spec.origin)} if spec.origin and Path(spec.origin).is_file() else {}
    else:
        roots = [Path(root) for root in spec.submodule_search_locations][::-1]  # Python takes the first that has it
        found = ((path.relative_to(root), path) for root in roots for path in root.rglob("*.py") if path.is_file())
        files = {name.as_posix(): path for name, path in found if not any(part[0] == "." for part in name.parts)}
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=6)
    for relative, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{relative}:{len(content)}:".encode() + content)
    return digest.hexdigest()
