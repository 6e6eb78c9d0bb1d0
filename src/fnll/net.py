"""How to make a network: the handle that methods hold instead of one."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
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
        return _template(self).filled(weights)

    @property
    def head_names(self) -> tuple[str, ...]:
        """The entries of the state that belong to the classification head."""
        return tuple(name for name in _template(self).state if name.startswith("head."))

    @property
    def batch_dependent(self) -> bool:
        """Whether its predictions depend on what else is in the batch, also in evaluation."""
        return batch_dependent(_template(self).network)


class Template:
    """One network of a kind, from which copies are made that share nothing with it or with each other.

    A copy is unpickled, with fresh tensors in the places of the template's: an eighth of the time of `copy.deepcopy`,
    which walks every (empty) dictionary of hooks in Python. Networks that do not allow this are copied the plain way.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.state: dict[str, Tensor] = network.state_dict(keep_vars=True)
        self.strays: list[Tensor] = []  # tensors that are no part of the state: buffers that are not persistent
        self.structure = self._structure()

    def filled(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """A copy of the network that holds a copy of `weights`."""
        _check_fit(weights, self.state)
        if self.structure is None:
            network = copy.deepcopy(self.network)
            network.load_state_dict(weights)
            return network

        def tensor(key: str | int) -> Tensor:
            if isinstance(key, int):
                return copy.deepcopy(self.strays[key])
            own = self.state[key]
            value = torch.empty_like(own).copy_(weights[key])
            return nn.Parameter(value, own.requires_grad) if isinstance(own, nn.Parameter) else value

        with torch.no_grad():
            return _Unpickler(self.structure, tensor).load()

    def _structure(self) -> bytes | None:
        """The network without its tensors, pickled; None if only the network itself knows how to load a state."""
        names: dict[int, str | int] = {id(value): name for name, value in self.state.items()}
        if len(names) < len(self.state) or not all(map(_loads_plainly, self.network.modules())):
            return None

        def key(tensor: Tensor) -> str | int:
            if id(tensor) not in names:
                names[id(tensor)] = len(self.strays)
                self.strays.append(tensor)
            return names[id(tensor)]

        stream = io.BytesIO()
        try:
            _Pickler(stream, key).dump(self.network)
        except Exception:  # a lambda, a class inside a function: whatever pickle does not take
            return None
        return stream.getvalue()


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, key: Callable[[Tensor], str | int]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._key = key

    def persistent_id(self, value: Any) -> str | int | None:
        return self._key(value) if isinstance(value, Tensor) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, tensor: Callable[[str | int], Tensor]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._tensor = functools.cache(tensor)  # one object as often as it was one object

    def persistent_load(self, key: str | int) -> Tensor:
        return self._tensor(key)


def _loads_plainly(module: nn.Module) -> bool:
    """Whether loading a state into `module` does no more than copy its tensors."""
    kind = type(module)
    own = (kind._load_from_state_dict, kind.load_state_dict, kind.state_dict)
    kept = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
    return all(f.__module__.startswith("torch.nn.") for f in own) and not any(vars(module).get(name) for name in kept)


@functools.lru_cache(maxsize=TEMPLATES)
def _template(net: Net) -> Template:
    """One network to copy. Its values never matter, so it neither reads nor downloads `pretrained` ones.

    Filters lie with their channels last in memory, which convolutions on the CPU, and on GPUs in half precision, are
    fastest with; states (`Weights`) are plain contiguous tensors all the same.
    """
    settings = dict(net.settings)
    if "pretrained" in settings:
        settings["pretrained"] = None
    with scoped(0):
        return Template(net.build(**settings).to(memory_format=torch.channels_last))  # type: ignore[call-overload]


def batch_dependent(module: nn.Module) -> bool:
    """Whether predictions depend on what else is in the batch also in evaluation: BatchNorm without running statistics.

    Passes over such a network's samples then walk in a fixed random order (`fnll.seeding.walk`): data that is stored
    class by class would give it batches of one class, which it has never been trained on.
    """
    kind = nn.modules.batchnorm._BatchNorm
    return any(isinstance(layer, kind) and layer.running_mean is None for layer in module.modules())


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
    if weights.keys() != own.keys():
        odd = sorted(weights.keys() ^ own.keys())
        raise ValueError(f"the weights are not this network's: {', '.join(odd[:5])} on one side only")
    for name, value in own.items():
        if weights[name].shape != value.shape:
            raise ValueError(
                f"the weights are not this network's: {name} is {tuple(weights[name].shape)}, not {tuple(value.shape)}"
            )
