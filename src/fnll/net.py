"""How to make a network: the handle that methods hold instead of one."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fnll.errors import UserError, nearest
from fnll.seeding import scoped
from fnll.weights import Weights, snapshot

TEMPLATES = 4  # networks kept per process: a run uses one, a method with a helper network two


@dataclass(frozen=True)
class Net:
    """How to make a network: hashable by value, so that each process builds a template once and copies it."""

    build: Callable[..., nn.Module]
    settings: tuple[tuple[str, Any], ...]  # sorted keyword settings; lists are tuples so that they can be hashed

    @classmethod
    def of(cls, build: Callable[..., nn.Module], **settings: Any) -> Net:
        """From a builder, or a partial of one (what Hydra makes of `_partial_: true`), and further settings."""
        while isinstance(build, functools.partial):
            if build.args:
                raise TypeError(f"a network's settings are keywords, got positional {build.args!r}")
            settings = {**build.keywords, **settings}
            build = build.func
        _check_settings(build, settings)
        return cls(build, tuple(sorted((name, _frozen(name, value)) for name, value in settings.items())))

    def __call__(self) -> nn.Module:
        """A network freshly initialised from the current global torch generator."""
        return self.build(**dict(self.settings))

    def fresh(self, seed: int) -> Weights:
        """Initial weights, addressed by `seed`."""
        with scoped(seed):
            return snapshot(self())

    def load(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """A network of its own that holds a copy of `weights`.

        Draws no randomness, so it may run in a background thread once the process has loaded its first network.
        """
        template = _template(self)
        _check_fit(weights, template.state_dict())
        module = copy.deepcopy(template)
        module.load_state_dict(weights)
        return module

    @property
    def head_names(self) -> tuple[str, ...]:
        """The entries of the state that belong to the classification head."""
        return tuple(name for name in _template(self).state_dict() if name.startswith("head."))


@functools.lru_cache(maxsize=TEMPLATES)
def _template(net: Net) -> nn.Module:
    """One network to copy. Its values never matter, so it neither reads nor downloads `pretrained` ones."""
    settings = dict(net.settings)
    if "pretrained" in settings:
        settings["pretrained"] = None
    with scoped(0):
        return net.build(**settings)


def _frozen(name: str, value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_frozen(name, part) for part in value)
    try:
        hash(value)
    except TypeError as error:
        raise UserError(f"model.{name} must be a number, a text, null or a list of these, got {value!r}") from error
    return value


def _check_settings(build: Callable[..., nn.Module], settings: Mapping[str, Any]) -> None:
    known = inspect.signature(build).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for name in settings.keys() - known.keys():
        raise UserError(f"the model has no setting {name!r}: {nearest(name, known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in settings:
            raise UserError(f"the model needs a value for {name!r}; set model.{name}")


def _check_fit(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    odd = sorted(weights.keys() ^ own.keys())
    if odd:
        raise ValueError(f"the weights are not this network's: {', '.join(odd[:5])} on one side only")
    for name, value in own.items():
        if weights[name].shape != value.shape:
            raise ValueError(
                f"the weights are not this network's: {name} is {tuple(weights[name].shape)}, not {tuple(value.shape)}"
            )
