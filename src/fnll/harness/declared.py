"""The settings of a run, held against what is declared about them, before data are loaded or anything is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from fnll.errors import require
from fnll.harness.config import store_of
from fnll.harness.sizes import check_numbers
from fnll.lengths import SHARE
from fnll.settings import check_arguments, declares_settings

PARTS = ("dataset", "scenario", "partition", "noise", "model", "local", "method", "executor")

Seed = Annotated[int, Field(ge=0, description="any whole number that is not negative")]


@dataclass(frozen=True)
class Common:
    """What every run has, beside its parts."""

    num_clients: Annotated[int, Field(ge=1, description="the number of clients the training set is split over")]
    fraction: Annotated[float, Field(ge=0, le=1, description="the share of the clients that take part in one round")]
    rounds: Annotated[int, Field(ge=1, le=10**9, description="the budget is rounds * cohort client updates")]
    seed: Seed
    scenario_seed: Seed
    eval_every: Annotated[int, Field(ge=1, description="evaluate after every so many steps")]
    diagnostics_every: Annotated[int, Field(ge=0, description="0 switches memorisation curves off")]
    diagnostics_samples: Annotated[int, Field(ge=1, description="images that memorisation is measured on")]
    diagnostics_uploads: bool
    checkpoint_seconds: Annotated[float, Field(ge=0, description="at most one checkpoint in so many seconds")]
    budget: Literal["updates", "rounds"]


@dataclass(frozen=True)
class Evaluation:
    """How models are evaluated."""

    batch_size: Annotated[int, Field(ge=1, description="test images in one forward pass")]
    overlap: Literal[True, False, "auto"]


def check_settings(cfg: DictConfig) -> None:
    """Refuse numbers that make no sense."""
    check_numbers(OmegaConf.to_container(cfg))
    check_arguments(Common, {field.name: cfg[field.name] for field in fields(Common)}, "")
    require(cfg.fraction > 0, f"fraction must be greater than 0, got {cfg.fraction}; 0.5 takes half of the clients")
    check_arguments(Evaluation, {field.name: cfg.eval[field.name] for field in fields(Evaluation)}, "eval")
    store_of(cfg)


def check_parts(cfg: DictConfig, parts: Iterable[str] = PARTS) -> None:
    """Hold the parts of a run, at every depth, against what their classes and functions declare."""
    for group in parts:
        if isinstance(cfg[group], DictConfig):
            _check_node(OmegaConf.to_container(cfg[group], resolve=True), group)


def _check_node(node: Any, group: str) -> None:
    target = _target(node.get("_target_"))
    if target is not None and declares_settings(target):
        check_arguments(target, {key: value for key, value in node.items() if not _is_made_later(value)}, group)
    for key, value in node.items():
        if isinstance(value, Mapping):
            _check_node(value, f"{group}.{key}")


def _is_made_later(value: object) -> bool:
    """Parts of parts, and lengths as shares of the budget, which become numbers once the clients are known."""
    return isinstance(value, Mapping) or (isinstance(value, str) and bool(SHARE.fullmatch(value)))


def _target(name: object) -> Any:
    """What a `_target_` names, or None: whoever makes it explains what is wrong with it."""
    try:
        return get_object(name) if isinstance(name, str) else None
    except Exception:
        return None
