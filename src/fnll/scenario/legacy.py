"""Seeds of the released codes, whose draws come from numpy's legacy generator."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

LegacySeed = (
    Annotated[int, Field(ge=0, le=2**32 - 1, description="null derives one from scenario_seed")] | None
)  # what numpy's legacy generator takes


def legacy_seed(legacy: int | None, seed: int) -> int:
    """The released code's seed, if one is given, or one derived from the scenario's."""
    return seed % 2**32 if legacy is None else legacy


def legacy_rng(legacy: int | None, seed: int) -> np.random.RandomState:
    """What `numpy.random.seed` starts in the released codes."""
    return np.random.RandomState(legacy_seed(legacy, seed))
