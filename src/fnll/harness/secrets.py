"""What a config takes from the environment is used, but not written down: it may be a key, or one's home folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

READER = "oc.env"


def from_environment(cfg: DictConfig) -> dict[str, str]:
    """The settings whose values come from the environment, directly or through others, with what the config says."""
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    raw.pop("hydra", None)  # Hydra's own node is no part of a run
    if READER not in str(raw):
        return {}
    told = {place: text for place, text in _leaves(raw, "") if isinstance(text, str) and "${" in text}
    hidden = {place: text for place, text in told.items() if READER in text}
    while more := {place: text for place, text in told.items() if place not in hidden and _refers(text, place, hidden)}:
        hidden |= more
    return hidden


def without_secrets(config: dict[str, Any], hidden: Mapping[str, str]) -> dict[str, Any]:
    """`config` as it may be written down: what came from the environment as the config says it, `${oc.env:NAME}`."""
    if not hidden:
        return config
    open_config = OmegaConf.create(config)
    for place, text in hidden.items():
        if OmegaConf.select(open_config, place) is not None:
            OmegaConf.update(open_config, place, text)
    return OmegaConf.to_container(open_config, resolve=False)  # type: ignore[return-value]


def _refers(text: str, place: str, hidden: Mapping[str, str]) -> bool:
    """Whether a value is made from a hidden one, named in full or, with dots in front, from where it stands."""
    last = {known.rpartition(".")[2] for known in hidden}
    return any(known in text for known in hidden) or any(f".{name}}}" in text for name in last)


def _leaves(node: object, place: str) -> Iterator[tuple[str, object]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{place}.{key}" if place else str(key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _leaves(value, f"{place}[{i}]")
    else:
        yield place, node
