"""Lengths of stages, warm-ups and ramps: a number of rounds, or a share of the budget such as `20%`.

    warmup: Annotated[int, Field(ge=0, description="rounds of FedAvg first"), Length()]

A method always sees numbers: the harness turns shares into them before it makes the method, and what a run is called
and records is the number. A method whose stages follow one another may say what a share is a share of (`Planned`), and
every method with stages says how much it needs for all of them to have their turn (`Staged`).
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

from fnll.errors import UserError

if TYPE_CHECKING:
    from fnll.federation import World

SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Length:
    """Marks a setting that may be typed as a percentage; a share is never shorter than `least`."""

    least: int = 1


@dataclass(frozen=True)
class Horizon:
    """What a method, or a stage of it, has before it."""

    budget: int  # client updates
    cohort_size: int
    world: World
    unit: int | None = None  # client updates in 1 of a length; None: those of a round

    @property
    def rounds(self) -> Fraction:
        """The whole that a percentage is a share of."""
        return Fraction(self.budget, self.unit or self.cohort_size)

    def after(self, updates: int) -> Horizon:
        """What is left when so many client updates have been spent."""
        return replace(self, budget=max(0, self.budget - updates))


@runtime_checkable
class Staged(Protocol):
    """A method that is not itself before some of the budget is spent."""

    def needs(self, world: World) -> int: ...  # the fewest client updates in which every stage has its turn


class Planned(Protocol):
    """A method some of whose shares are not of the whole budget, or not counted in rounds."""

    @classmethod
    def ahead(cls, name: str, settings: Mapping[str, Any], whole: Horizon) -> Horizon:
        """What setting `name`, a length or an inner method, has before it; those of fields above it are resolved."""
        ...


def resolve(length: str, whole: Fraction | int, least: int = 1, key: str = "the length") -> int:
    """A percentage of `whole`, to the nearest whole number and not below `least`."""
    found = SHARE.fullmatch(length)
    if not found or Fraction(found[1]) > 100:
        raise UserError(f"{key} must be a whole number, or a share such as 20% of at most 100%, got {length!r}")
    return max(least, math.floor(Fraction(found[1]) * whole / 100 + Fraction(1, 2)))


def resolved(kind: Any, settings: Mapping[str, Any], whole: Horizon, key: str = "method") -> dict[str, Any]:
    """`settings` of a method of class `kind` with numbers in the place of percentages."""
    done = dict(settings)
    for name, hint in marked(kind).items():
        value = done.get(name)
        if isinstance(value, str) and value.strip().endswith("%"):
            mark, number = hint
            part = horizon(kind, name, done, whole)
            done[name] = number(resolve(value, part.rounds, mark.least, f"{key}.{name}"))
    return done


def horizon(kind: Any, name: str, settings: Mapping[str, Any], whole: Horizon) -> Horizon:
    """What a setting of a method has before it."""
    planned: Horizon = kind.ahead(name, settings, whole) if hasattr(kind, "ahead") else whole
    return planned


@cache
def marked(kind: Any) -> dict[str, tuple[Length, type]]:
    """The lengths among a method's settings, in the order of its fields, each with its type."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:  # a plugin's annotation that names nothing here
        return {}
    order = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else list(hints)
    found = {name: next(_marks(hints[name]), None) for name in order if name in hints}
    return {name: mark for name, mark in found.items() if mark is not None}


def _marks(hint: Any) -> Iterator[tuple[Length, type]]:
    if get_origin(hint) is Annotated:
        base, *marks = get_args(hint)
        yield from ((mark, float if base is float else int) for mark in marks if isinstance(mark, Length))
    for part in get_args(hint):
        if not inspect.isclass(part):
            yield from _marks(part)
