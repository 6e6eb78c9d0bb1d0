"""Seeds of the released codes, whose draws come from numpy's legacy generator."""

from __future__ import annotations

import numpy as np

from fnll.errors import UserError


def require_legacy_seed(name: str, seed: int | None) -> None:
    """Demand a seed that the legacy generator takes, or None: derived from the scenario's seed."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32):
        raise UserError(
            f"{name} must be a whole number from 0 to {2**32 - 1}, or null to derive one from scenario_seed, got {seed}"
        )


def legacy_seed(legacy: int | None, seed: int) -> int:
    """The released code's seed, if one is given, or one derived from the scenario's."""
    return seed % 2**32 if legacy is None else legacy


def legacy_rng(legacy: int | None, seed: int) -> np.random.RandomState:
    """What `numpy.random.seed` starts in the released codes."""
    return np.random.RandomState(legacy_seed(legacy, seed))
