"""A method under test: made from its YAML, with settings that take a short run through every stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from fnll.errors import UserError, nearest
from fnll.federation import Method, Snapshot
from fnll.harness.budget import node_in_rounds
from fnll.harness.choices import options
from fnll.harness.config import compose
from fnll.harness.making import completed
from fnll.harness.mistakes import MISTAKES, explain
from fnll.harness.prepare import complete, made
from fnll.harness.trust import allow, stated_in
from fnll.lengths import Horizon
from fnll.testing.worlds import ROUNDS, TinyWorld, play

SHARED = ("net", "local", "cohort_size")


@dataclass(frozen=True)
class Subject:
    """A method's config, ready to be made in any tiny world.

    The class may carry, all optional: `short_run`, settings under which eight rounds pass through every stage;
    `limit_laws`, a mapping from a sentence to settings under which it is FedAvg; `excused`, a mapping from the name of
    a check to the reason why it cannot hold.
    """

    name: str
    node: DictConfig

    @property
    def settings(self) -> dict[str, Any]:
        return {str(key): value for key, value in self.node.items() if not str(key).startswith("_")}

    @property
    def short_run(self) -> Mapping[str, Any]:
        return getattr(self._class, "short_run", {})

    @property
    def limit_laws(self) -> Mapping[str, Mapping[str, Any]]:
        return getattr(self._class, "limit_laws", {})

    @property
    def excused(self) -> Mapping[str, str]:
        return getattr(self._class, "excused", {})

    @cached_property
    def _class(self) -> Any:
        return made(self.node, "method").func

    def method(self, world: TinyWorld, cohort: int = 3, **settings: Any) -> Method:
        """The method in `world`, under its short settings and those given."""
        return self.as_typed(world, cohort, **{**self.short_run, **settings})

    def as_typed(self, world: TinyWorld, cohort: int = 3, rounds: int = ROUNDS, **settings: Any) -> Method:
        """The method in `world` as its YAML has it, under the settings given; shares are of so many rounds."""
        node = self.node.copy()
        for key, value in settings.items():
            OmegaConf.update(node, key, value, force_add=True)
        plain: Any = OmegaConf.to_container(node, resolve=True)
        numbers = node_in_rounds(plain, Horizon(rounds * cohort, cohort, world.public))
        return completed(made(OmegaConf.create(numbers), "method"), world.shared(cohort), "method", complete)

    @cached_property
    def plain_run(self) -> list[Snapshot]:
        """A run like any other, made once, for the checks that look at one or compare others with it."""
        world = TinyWorld()
        torch.manual_seed(1)  # some state of the global generator that is known to differ from another
        return play(self.method(world), world)


def subject_of(name: str) -> Subject:
    """A method by its name or by the path of its YAML."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in options("method"):
            raise UserError(f"there is no method called {name!r}; {nearest(name, options('method'))}")
        return Subject(name, compose([f"method={name}"]).cfg.method)
    if not path.is_file():
        raise UserError(f"there is no file {name}; give a method's name or the path of its YAML")
    stated = {target.rpartition(".")[0] for target in stated_in((path.resolve(),))}
    allow(*(module for module in stated if module and not module.startswith("fnll.")))  # who checks a file trusts it
    if path.resolve().parent.name == "method":
        folder = path.resolve().parents[1]
        return Subject(path.stem, compose([f"method={path.stem}"], [folder]).cfg.method)
    try:
        node = OmegaConf.load(path)
        if isinstance(node, DictConfig):
            node.pop("name", None)  # for tables
    except MISTAKES as error:
        raise explain(error) from None
    if not isinstance(node, DictConfig) or "_target_" not in node:
        raise UserError(f"{name} names no `_target_`; it should say which class it configures")
    return Subject(path.stem, node)
