"""Settings declared once, where they are used: a type with its bounds and its meaning, and one message for all.

    mu: Annotated[float, Field(ge=0, description="μ weighs the proximal term; 0 is FedAvg")]
    form: Literal["half_squared", "norm"]
    finetune: Annotated[int, Field(ge=0, description="rounds of stage 2")] | None

Pydantic judges the values, strictly: `true` is no 1 and "3" no 3. `Field(title=...)` says in words what is allowed
where the type does not. Fields of other types (networks, a plugin's own classes) are left alone, so a plain dataclass
works as it is. A dataclass calls `check_fields` in `__post_init__`, a function is `@checked`, and the harness checks a
config before anything is made of it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, wraps
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeGuard,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fnll.errors import UserError, nearest
from fnll.lengths import Length

Function = TypeVar("Function", bound=Callable[..., Any])

PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", NoneType: "null"}


@dataclass(frozen=True)
class Setting:
    """One declared setting: its judge, what is allowed in words, what it means, and words to choose from."""

    adapter: TypeAdapter[Any]
    allowed: str
    meaning: str
    words: tuple[str, ...]
    explicit: bool  # declared with a `Field` or a `Literal`, and not by a plain type alone

    def check(self, key: str, value: object) -> None:
        """Raise a `UserError` that says key, value, bound and meaning unless `value` is allowed."""
        try:
            self.adapter.validate_python(tuple(value) if _is_list(value) else value, strict=True)
            if not any(isinstance(part, float) and not math.isfinite(part) for part in _parts(value)):
                return
        except ValidationError:
            pass
        endless = " finite and" if value == math.inf else ""
        advice = close if (close := nearest(value, self.words)).startswith("did you") else self.meaning
        shown = repr(value) if isinstance(value, str) else _shown(value)
        raise UserError(f"{key} must be{endless} {self.allowed}, got {shown}" + (f"; {advice}" if advice else ""))


@dataclass(frozen=True)
class FieldsOf:
    """Marks the `**rest` of a function, which it hands to a dataclass, whose settings are then its own, too."""

    kind: type


def check_fields(thing: object, group: str) -> None:
    """Check the fields of a dataclass; messages call them `group.name`."""
    declared = settings_of(cast(Callable[..., Any], type(thing)))
    for field in fields(thing):  # type: ignore[arg-type]
        if field.name in declared:
            declared[field.name].check(f"{group}.{field.name}", getattr(thing, field.name))


def check_arguments(target: Callable[..., Any], values: Mapping[str, object], group: str) -> None:
    """Check what a class or function is about to be called with; without a group, settings have their bare names."""
    for name, setting in settings_of(target).items():
        if name in values:
            setting.check(f"{group}.{name}" if group else name, values[name])


def checked(group: str) -> Callable[[Function], Function]:
    """Let a function check its arguments as a dataclass checks its fields."""

    def decorate(function: Function) -> Function:
        names = list(inspect.signature(function).parameters)

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            check_arguments(function, dict(zip(names, args, strict=False)) | named, group)
            return function(*args, **named)

        return cast(Function, call)

    return decorate


def declares_settings(target: Callable[..., Any]) -> bool:
    """Whether anything is declared; if not, plain types are remarks of an author who checks the values, or does not."""
    return any(setting.explicit for setting in settings_of(target).values())


@cache
def settings_of(target: Callable[..., Any]) -> dict[str, Setting]:
    """The declared settings of a dataclass or function, by name."""
    try:
        hints = get_type_hints(target, include_extras=True)
        if inspect.isclass(target) and not hasattr(target, "__dataclass_fields__"):
            hints = get_type_hints(target.__init__, include_extras=True)
        hints = {name: part for key, hint in hints.items() for name, part in _spread(key, hint).items()}
    except Exception:  # a plugin's annotation that names nothing: its settings are then its own to check
        return {}
    found = {name: _setting(hint) for name, hint in hints.items() if name != "return"}
    return {name: setting for name, setting in found.items() if setting is not None}


def _spread(name: str, hint: Any) -> dict[str, Any]:
    """The hints of what comes as `**rest`; any other hint as it is."""
    if get_origin(hint) is Unpack:
        return get_type_hints(get_args(hint)[0], include_extras=True)
    if get_origin(hint) is Annotated:
        for mark in get_args(hint)[1:]:
            if isinstance(mark, FieldsOf):
                return get_type_hints(mark.kind, include_extras=True)
    return {name: hint}


def _setting(hint: Any) -> Setting | None:
    """`hint` as a setting, or None if it is of a type that others judge."""
    try:
        allowed = _allowed(hint)
    except TypeError:
        return None
    words = tuple(word for word in _words(hint) if isinstance(word, str))
    return Setting(TypeAdapter(hint), allowed, _meaning(hint), words, _is_explicit(hint))


def _allowed(hint: Any) -> str:
    """What a hint allows, in words; TypeError for types that are not settings."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        titles = [mark.title for mark in parts[1:] if isinstance(mark, FieldInfo) and mark.title]
        share = " or a share such as 20%" if any(isinstance(mark, Length) for mark in parts[1:]) else ""
        return (titles[0] if titles else _bounded(parts[0], _bounds(parts[1:]))) + share
    if origin is Literal:
        words = [_shown(part) for part in parts]
        return f"one of {', '.join(words)}" if len(words) > 2 else " or ".join(words)
    if origin in (Union, UnionType):
        return ", or ".join(_allowed(part) for part in parts)
    if origin is Sequence:
        return f"a list, each of it {_allowed(parts[0])}"
    if origin is tuple:
        kinds = [_allowed(part) for part in parts if part is not ...]
        return f"{'a list, each of it' if ... in parts else f'{len(kinds)} values, each'} {kinds[0]}"
    raise TypeError(hint)


def _bounded(kind: Any, bounds: Mapping[str, Any]) -> str:
    ge, gt, le, lt = (bounds.get(name) for name in ("ge", "gt", "le", "lt"))
    if get_origin(kind) is Sequence and "max_length" in bounds:
        return f"{bounds['max_length']} values, each {_allowed(get_args(kind)[0])}"
    if kind not in (int, float):
        return _allowed(kind)
    if kind is int:
        if ge is not None and le is not None:
            return f"a whole number from {ge} to {le}"
        return f"a whole number of at least {ge}" if ge is not None else "a whole number"
    if ge is not None and le is not None:
        return f"in [{ge:g}, {le:g}]"
    lower = f"at least {ge:g}" if ge is not None else f"greater than {gt:g}" if gt is not None else ""
    upper = f"at most {le:g}" if le is not None else f"less than {lt:g}" if lt is not None else ""
    return " and ".join(part for part in (lower, upper) if part) or "a number"


def _bounds(marks: Sequence[Any]) -> dict[str, Any]:
    kinds = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt", MinLen: "min_length", MaxLen: "max_length"}
    every = [part for mark in marks for part in (mark.metadata if isinstance(mark, FieldInfo) else [mark])]
    return {kinds[type(part)]: getattr(part, kinds[type(part)]) for part in every if type(part) in kinds}


def _meaning(hint: Any) -> str:
    """The description of a hint, or of the first part of a union or list that has one."""
    if get_origin(hint) is Annotated:
        marks = [mark.description for mark in get_args(hint)[1:] if isinstance(mark, FieldInfo) and mark.description]
        return marks[0] if marks else _meaning(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType, Sequence, tuple):
        return next((found for part in get_args(hint) if (found := _meaning(part))), "")
    return ""


def _is_explicit(hint: Any) -> bool:
    if get_origin(hint) is Annotated and any(isinstance(mark, FieldInfo) for mark in get_args(hint)[1:]):
        return True
    return get_origin(hint) is Literal or any(_is_explicit(part) for part in get_args(hint))


def _words(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) in (Annotated, Union, UnionType):
        return tuple(word for part in get_args(hint) for word in _words(part))
    return ()


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Lists in any form, OmegaConf's included; a word is none."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def _parts(value: object) -> Sequence[Any]:
    return value if _is_list(value) else [value]


def _shown(value: object) -> str:
    """A value as one would type it."""
    names = {True: "true", False: "false", None: "null"}
    return names[value] if isinstance(value, (bool, NoneType)) else str(value)
