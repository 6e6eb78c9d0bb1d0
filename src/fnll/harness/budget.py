"""A method within its budget: lengths as numbers of rounds, and the fewest rounds in which a method is itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from fnll.federation import Method, World
from fnll.harness.config import Request
from fnll.lengths import Horizon, Staged, horizon, marked, resolved

TRIES = 1000  # budgets to look at before shares are said to leave no room in any
PATIENCE = 20  # budgets after which one so many times as long is tried: where that does not do, none does


def in_rounds(request: Request, whole: Horizon) -> Request:
    """`request` with numbers in the place of percentages, in its method and in those inside it."""
    if not isinstance(request.cfg.get("method"), DictConfig):  # `made` says what is wrong with it
        return request
    asked: Any = OmegaConf.to_container(request.cfg.method)
    node = node_in_rounds(asked, whole)
    if node == asked:
        return request
    resolved = request.cfg.copy()
    resolved.method = node
    return replace(request, cfg=resolved)


def node_in_rounds(node: Mapping[str, Any], whole: Horizon, key: str = "method") -> dict[str, Any]:
    """The config of a method with numbers in the place of percentages."""
    kind = _kind(node)
    done = resolved(kind, node, whole, key)
    for name, value in done.items():
        if isinstance(value, dict) and "_target_" in value:
            done[name] = node_in_rounds(value, horizon(kind, name, done, whole), f"{key}.{name}")
    return done


def typed_shares(asked: Mapping[str, Any], got: Mapping[str, Any], key: str = "method") -> dict[str, str]:
    """The lengths that were given as percentages: `{"method.warmup": "20%"}`."""
    found: dict[str, str] = {}
    for name, value in asked.items():
        if isinstance(value, dict):
            found |= typed_shares(value, got[name], f"{key}.{name}")
        elif value != got[name]:
            found[f"{key}.{name}"] = value
    return found


def too_small(method_at: Callable[[int], Method], rounds: int, cohort_size: int, world: World) -> str | None:
    """Why `rounds` do not do for a method's stages, with the fewest that would; None if they do.

    `method_at` makes the method for a number of rounds, on which its lengths may depend.
    """
    if _rounds_needed(method_at(rounds), cohort_size, world) <= rounds:
        return None
    fewest = _fewest(method_at, cohort_size, world)
    if fewest is None:
        return "its lengths are shares that leave no room for all its stages in any budget; lower them"
    fixed = ", ".join(f"{name} ({value})" for name, value in _fixed(method_at(1), method_at(2 * fewest)))
    lower = f", or lower {fixed}" if fixed else ""
    return f"its stages need at least {fewest} rounds, and it has {rounds}; type rounds={fewest}{lower}"


def _fewest(method_at: Callable[[int], Method], cohort_size: int, world: World) -> int | None:
    """The fewest rounds that do: no fewer ones than what fewer ones need, since lengths grow with the budget."""
    rounds = 1
    for tried in range(TRIES):
        needed = _rounds_needed(method_at(rounds), cohort_size, world)
        if needed <= rounds:
            return rounds
        rounds = needed
        far = rounds * TRIES
        if tried == PATIENCE and _rounds_needed(method_at(far), cohort_size, world) > far:
            return None
    return None


def _rounds_needed(method: Method, cohort_size: int, world: World) -> int:
    return -(-method.needs(world) // cohort_size) if isinstance(method, Staged) else 1


def _fixed(one: Method, other: Method) -> Iterator[tuple[str, int]]:
    """The lengths that are the same numbers in two budgets, and so were typed as numbers."""
    for name in marked(type(one)):
        value = getattr(one, name)
        if value and value == getattr(other, name):
            yield f"method.{name}", value


def _kind(node: Mapping[str, Any]) -> Any:
    """The class that a config names; `made` explains what is wrong with a name that leads nowhere."""
    try:
        return get_object(str(node["_target_"]))
    except Exception:
        return None
