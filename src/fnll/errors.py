"""Mistakes a user can mend. The command line prints them without a traceback and exits with 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user typed or provided is wrong; the message says what, where, and what to type instead."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the closest known names, for messages about an unknown one."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there is: {', '.join(known)}" if known else "there is none"


def require(condition: bool, message: str) -> None:
    """Raise a `UserError` unless `condition` holds."""
    if not condition:
        raise UserError(message)


def require_between(name: str, value: float, low: float, high: float, meaning: str) -> None:
    """Demand `low <= value <= high`, with a message that says what the number means."""
    if not (isinstance(value, (int, float)) and low <= value <= high):
        raise UserError(f"{name} must be in [{low:g}, {high:g}], got {value}; {meaning}")


def require_at_least(name: str, value: float, low: float, meaning: str) -> None:
    """Demand `value >= low`, with a message that says what the number means."""
    if not (isinstance(value, (int, float)) and value >= low):
        raise UserError(f"{name} must be at least {low:g}, got {value}; {meaning}")


def require_integer(name: str, value: object, low: int, meaning: str) -> None:
    """Demand a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise UserError(f"{name} must be a whole number of at least {low}, got {value}; {meaning}")


def require_positive(name: str, value: float, meaning: str) -> None:
    """Demand `value > 0`, with a message that says what the number means."""
    if not (isinstance(value, (int, float)) and value > 0):
        raise UserError(f"{name} must be greater than 0, got {value}; {meaning}")
