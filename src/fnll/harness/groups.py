"""Settings that are groups of settings: a value in the place of one, or a key that nothing reads, is a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fnll.errors import require

EXAMPLES = {"eval": "eval.batch_size=1000", "sweep": "sweep.together=1", "paper": "paper=fedrn/cifar10"}
MAPPINGS = ("params", "submitit", "ray")  # of `sweep`


def check_groups(cfg: Mapping[str, Any]) -> None:
    """Refuse a plain value where a group is meant, in every command that reads the config."""
    for group, example in EXAMPLES.items():
        found = cfg.get(group)
        require(isinstance(found, Mapping), f"{group} is a group of settings, got {found!r}; type {example}")
    for key in MAPPINGS:
        found = cfg["sweep"].get(key) or {}
        require(isinstance(found, Mapping), f"sweep.{key} is a mapping from settings to values, got {found!r}")
    methods, trials = cfg["paper"].get("methods"), cfg["paper"].get("trials")
    require(
        methods is None or (isinstance(methods, list) and all(isinstance(name, str) for name in methods)),
        f"paper.methods is a list of names or null, got {methods!r}; type paper.methods=[fedavg]",
    )
    require(
        isinstance(trials, int) and not isinstance(trials, bool) and trials >= 1,
        f"paper.trials must be a whole number of at least 1, got {trials!r}; it is the number of seeds",
    )
