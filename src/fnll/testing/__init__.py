"""The conformance kit: what `fnll check` runs, for the authors of methods.

from fnll.testing import check_method, subject_of
for result in check_method(subject_of("fedprox")):
    print(result)
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fnll.errors import UserError, nearest
from fnll.testing import budgets, checks, degenerate  # noqa: F401  (they register themselves)
from fnll.testing.equality import canonical, same
from fnll.testing.executors import Backwards, Compared, Paranoid, Recording, Roundtrip
from fnll.testing.registry import CHECKS, Check, UnstatedError
from fnll.testing.subject import Subject, subject_of
from fnll.testing.worlds import TinyWorld, accuracy, play, tiny_local

__all__ = [
    "CHECKS",
    "Backwards",
    "Check",
    "Compared",
    "Paranoid",
    "Recording",
    "Result",
    "Roundtrip",
    "Subject",
    "TinyWorld",
    "accuracy",
    "canonical",
    "check_method",
    "play",
    "run_check",
    "same",
    "subject_of",
    "tiny_local",
]


@dataclass(frozen=True)
class Result:
    """How one check went: `passed`, `failed`, `excused` with the method's own reason, `unstated`, or `untried`."""

    check: Check
    outcome: str
    detail: str = ""


def run_check(subject: Subject, check: Check) -> Result:
    """Run one check; any error counts as failing it."""
    reason = subject.excused.get(check.name)
    if reason is not None:
        return Result(check, "excused", reason)
    try:
        check.test(subject)
    except UnstatedError as error:
        return Result(check, "unstated", str(error))
    except (AssertionError, UserError) as error:
        return Result(check, "failed", str(error))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = ", ".join([f"{Path(place.filename).name}:{place.lineno}", *getattr(error, "__notes__", [])])
        return Result(check, "failed", f"{type(error).__name__}: {error} ({where})")
    return Result(check, "passed")


def check_method(subject: Subject, only: Iterable[str] = ()) -> Iterator[Result]:
    """Run all checks, or those named, one after the other; a method that cannot be made fails one of them."""
    names = list(only) or list(CHECKS)
    for name in names:
        if name not in CHECKS:
            raise UserError(f"there is no check called {name!r}; {nearest(name, CHECKS)}")
    mistake = _making(subject)
    if mistake is None:
        yield from (run_check(subject, CHECKS[name]) for name in names)
    else:
        yield Result(CHECKS["config_matches_fields"], "failed", mistake)
        yield from (Result(CHECKS[name], "untried", mistake) for name in names if name != "config_matches_fields")


def _making(subject: Subject) -> str | None:
    """What is wrong with the YAML or the class, if the method cannot be made: one mistake, not one for each check."""
    try:
        subject.method(TinyWorld())
    except UserError as error:
        return str(error)
    return None
