"""A method from its config: networks and inner methods made at every depth, and its form checked at once."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast, get_type_hints

from fnll.errors import UserError
from fnll.federation import Choosy, Method, World
from fnll.net import Net

NEEDED = ("init", "round", "model")
REMOVED = ("prepare", "finish", "remembered")  # hooks of 0.1
NEW_FORM = (
    "since 0.2 a job asks for its training:\n"
    "    def train(self, client, weights):\n"
    "        trained = yield Fit(self.module(client, weights=weights), client)\n"
    "        return Update(trained.weights, memory=trained.memory)\n"
    "see docs/add-a-method.md"
)

Call = Callable[[Any, dict[str, Any], str], Any]


def completed(factory: Any, shared: Mapping[str, Any], group: str, call: Call) -> Method:
    """The method that a Hydra partial describes; `call` calls it and explains what goes wrong."""
    kind = getattr(factory, "func", factory)
    hints = _hints(kind)
    inner = {
        name: _inner(value, hints.get(name), shared, f"{group}.{name}", call)
        for name, value in getattr(factory, "keywords", {}).items()
    }
    return as_method(call(partial(kind, **inner), dict(shared), group), group)


def _inner(value: Any, hint: Any, shared: Mapping[str, Any], group: str, call: Call) -> Any:
    if isinstance(value, partial):
        if _is_method(value.func):
            return completed(value, shared, group, call)
        return _network(value, shared, group, wanted=hint)
    if value is not None and _speaks_of(hint, Method):
        raise UserError(f"{group} is a method, not the value {value!r}; type method@{group}=NAME")
    if isinstance(value, (list, tuple)):
        return [_inner(part, None, shared, f"{group}[{i}]", call) for i, part in enumerate(value)]
    if isinstance(value, dict):
        return {name: _inner(part, None, shared, f"{group}.{name}", call) for name, part in value.items()}
    return value


def _network(build: partial[Any], shared: Mapping[str, Any], group: str, wanted: Any) -> Net:
    """A second network of a method, for the same images and classes as the first."""
    if _speaks_of(wanted, Method) or "num_classes" not in _parameters(build.func):
        name = f"{build.func.__module__}.{getattr(build.func, '__qualname__', build.func)}"
        raise UserError(f"{group}: {name} is neither a method (it has no {', '.join(NEEDED)}) nor a network")
    given = dict(shared["net"].settings)
    return Net.of(build, **{name: given[name] for name in ("num_classes", "input_shape") if name in given})


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except ValueError:  # some builtins do not tell
        return set()


def as_method(thing: object, group: str = "method") -> Method:
    """`thing`, if it has what a method must have and nothing that is no longer called."""
    kind = type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if lacking := [needed for needed in NEEDED if not callable(getattr(thing, needed, None))]:
        raise UserError(
            f"{group}: {name} is not a method: it has no {', '.join(lacking)}. `fnll new method NAME` generates one"
        )
    for hook in REMOVED:
        if callable(getattr(thing, hook, None)):
            raise UserError(f"{group}: {name} overrides {hook}, which nobody calls any more; {NEW_FORM}")
    aggregate = getattr(kind, "aggregate", None)
    if aggregate is not None and len(inspect.signature(aggregate).parameters) == 3:
        raise UserError(f"{group}: {name}.aggregate takes the federation too: def aggregate(self, state, updates, fed)")
    for job in _jobs_of_old(kind):
        raise UserError(f"{group}: {name}.{job} takes super().{job}(...) for an Update; {NEW_FORM}")
    return cast(Method, thing)


def _jobs_of_old(kind: type) -> Iterator[str]:
    """Jobs that use the inherited training as if it returned an Update, instead of `yield from`."""
    for owner in kind.__mro__:
        for name, function in vars(owner).items():
            if not inspect.isfunction(function) or "super" not in function.__code__.co_names:
                continue
            inherited = any(inspect.isgeneratorfunction(getattr(base, name, None)) for base in owner.__mro__[1:])
            if inherited and not inspect.isgeneratorfunction(function) and not _passes_on(function):
                yield name


def _passes_on(function: Callable[..., Any]) -> bool:
    """Whether a function only returns what `super()` gives it, which is fine: the generator itself."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return True  # no source to look at: a mistake will show when the job runs
    calls = [node for node in ast.walk(tree) if _is_super_call(node)]
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return all(call in returned for call in calls)


def _is_super_call(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    inner = node.func.value
    return isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "super"


def inner_methods(method: object) -> Iterator[tuple[str, Method]]:
    """The methods inside a method, with the names of their settings, outer ones first."""
    if not dataclasses.is_dataclass(method):
        return
    for field in dataclasses.fields(method):
        value = getattr(method, field.name, None)
        if all(callable(getattr(value, needed, None)) for needed in NEEDED):
            yield field.name, cast(Method, value)
            yield from ((f"{field.name}.{name}", inner) for name, inner in inner_methods(value))


def networks(method: object) -> Iterator[Net]:
    """Every network that a method, or a method inside it, works with."""
    for one in (method, *(inner for _, inner in inner_methods(method))):
        if dataclasses.is_dataclass(one):
            held = (getattr(one, field.name, None) for field in dataclasses.fields(one))
            yield from (value for value in held if isinstance(value, Net))


def privileges(method: Method) -> list[str]:
    """What a method and those inside it are given that FedAvg is not."""
    own = list(getattr(method, "privileges", ()))
    inside = [
        f"{said} ({type(inner).__name__} inside)"
        for _, inner in inner_methods(method)
        for said in getattr(inner, "privileges", ())
    ]
    return own + inside


def declined(method: Method, world: World) -> str | None:
    """Why a method, or one inside it, does not take part in a world; None if all do."""
    everyone = [("", method), *((f"{name}: ", inner) for name, inner in inner_methods(method))]
    return next((f"{where}{why}" for where, one in everyone if (why := _reason(one, world))), None)


def _reason(method: Method, world: World) -> str | None:
    if isinstance(method, Choosy):
        return method.decline(world)
    if not callable(skip := getattr(method, "skip", None)):
        return None
    name = type(method).__name__
    warnings.warn(f"{name}.skip(world) is called {name}.decline(world) since 0.2", FutureWarning, stacklevel=2)
    return cast("str | None", skip(world))


def _is_method(kind: object) -> bool:
    return inspect.isclass(kind) and all(callable(getattr(kind, needed, None)) for needed in ("init", "round"))


def _speaks_of(hint: Any, wanted: type) -> bool:
    return hint is wanted or any(_speaks_of(part, wanted) for part in getattr(hint, "__args__", ()))


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except Exception:  # annotations of a plugin that name nothing here
        return {}
