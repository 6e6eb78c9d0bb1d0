"""Seeds of the released codes, whose draws come from numpy's legacy generator."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fnll.errors import UserError
from fnll.scenario.scenario import Dataset

LegacySeed = (
    Annotated[int, Field(ge=0, le=2**32 - 1, description="null derives one from scenario_seed")] | None
)  # what numpy's legacy generator takes


def require_published_order(dataset: Dataset, partition: object, noise: object) -> None:
    """Refuse to draw as the released codes do where positions mean other samples than they did to them."""
    if dataset.rearranged is None:
        return
    parts = {"partition": partition, "noise": noise}
    asked = {name: getattr(part, "legacy_seed", None) for name, part in parts.items()}
    seeds = [f"{name}.legacy_seed={value}" for name, value in asked.items() if value is not None]
    if getattr(partition, "by_position", False):
        what = "partition=dirichlet_official splits blocks of positions"
    elif seeds:
        what = f"{seeds[0]} stands for the released code's own draw of positions"
    else:
        return
    raise UserError(
        f"{what}, and {dataset.name} is stored class by class, so these would be other clients than the released "
        f"code's; {dataset.rearranged}"
    )


def legacy_seed(legacy: int | None, seed: int) -> int:
    """The released code's seed, if one is given, or one derived from the scenario's."""
    return seed % 2**32 if legacy is None else legacy


def legacy_rng(legacy: int | None, seed: int) -> np.random.RandomState:
    """What `numpy.random.seed` starts in the released codes."""
    return np.random.RandomState(legacy_seed(legacy, seed))
