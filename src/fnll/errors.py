"""Mistakes a user can fix. The command line prints them without a traceback and exits with 2."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import TypeGuard


class UserError(Exception):
    """Something the user typed or provided is wrong; the message says what, where, and what to type instead."""


class NotFiniteError(ValueError):
    """A computation cannot go on because numbers in it are not finite: the run has diverged, and nothing crashed."""


def nearest(name: object, known: Iterable[str]) -> str:
    """A sentence that names the closest known names, for messages about an unknown one."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"choose from: {', '.join(known)}" if known else "there are none"


def require(condition: bool, message: str) -> None:
    """Raise a `UserError` unless `condition` holds."""
    if not condition:
        raise UserError(message)


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def require_finite(name: str, value: object, advice: str) -> None:
    """Refuse infinity, which is greater than any lower bound."""
    if value == math.inf:
        raise UserError(f"{name} must be finite, got {value}; {advice}")


def require_between(name: str, value: float, low: float, high: float, meaning: str) -> None:
    """Demand `low <= value <= high`, with a message that says what the number means."""
    if not (is_number(value) and low <= value <= high):
        raise UserError(f"{name} must be in [{low:g}, {high:g}], got {value}; {meaning}")


def require_at_least(name: str, value: float, low: float, meaning: str) -> None:
    """Demand `value >= low`, with a message that says what the number means."""
    require_finite(name, value, meaning)
    if not (is_number(value) and value >= low):
        raise UserError(f"{name} must be at least {low:g}, got {value}; {meaning}")


def require_integer(name: str, value: object, low: int, meaning: str) -> None:
    """Demand a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise UserError(f"{name} must be a whole number of at least {low}, got {value}; {meaning}")


def require_positive(name: str, value: float, meaning: str) -> None:
    """Demand `value > 0`, with a message that says what the number means."""
    require_finite(name, value, meaning)
    if not (is_number(value) and value > 0):
        raise UserError(f"{name} must be greater than 0, got {value}; {meaning}")


def require_flag(name: str, value: object) -> None:
    """Demand true or false; any other word would silently count as true."""
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false, got {value}")
