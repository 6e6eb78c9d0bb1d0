"""What a check is, and where checks are registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fnll.testing.subject import Subject


@dataclass(frozen=True)
class Check:
    """One property that every method must have, in words and as a test."""

    name: str
    promise: str  # what must hold
    stakes: str  # what failing it would mean for a comparison
    remedy: str  # where to look
    test: Callable[[Subject], None]  # raises AssertionError


CHECKS: dict[str, Check] = {}


def check(promise: str, stakes: str, remedy: str) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Register a check under the name of its function."""

    def register(test: Callable[[Subject], None]) -> Callable[[Subject], None]:
        name = test.__name__
        CHECKS[name] = Check(name, promise, stakes, remedy, test)
        return test

    return register


def fail(message: str) -> None:
    """Say how a promise was broken."""
    raise AssertionError(message)


class UnstatedError(Exception):
    """There is nothing to check: the method states nothing of the kind."""


def unstated(message: str) -> None:
    """Say that a method leaves open what a check is about, which is neither good nor bad."""
    raise UnstatedError(message)
