"""`model.pretrained`: where a network's first weights come from."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fnll.errors import UserError
from fnll.models.network import Network

log = logging.getLogger(__name__)

TORCHVISION = "torchvision"


def start_from(net: Network, source: str | None, *, head: str = "head", imagenet: Any = None) -> Network:
    """Put pretrained weights into `net`: from a state file, or with "torchvision" those that torchvision publishes.

    A file may use our names (`weights.safetensors` of a finished run) or torchvision's, which call the head `head`.
    Two things adapt: a head for another number of classes is left as it was initialised, and a three-channel stem is
    summed over its channels for grey images, which equals showing it the grey image three times.
    """
    if source is None:
        return net
    state = _published(imagenet) if source == TORCHVISION else _read(Path(source))
    state = _fit(_renamed(state, head), net.state_dict(), source)
    net.load_state_dict(state)
    return net


def _published(imagenet: Any) -> Mapping[str, Tensor]:
    if imagenet is None:
        raise UserError(
            "model.pretrained=torchvision: torchvision publishes no weights for this network; "
            "type model=resnet18, resnet50 or vgg11, or model.pretrained=path/to/weights.safetensors"
        )
    try:
        state: Mapping[str, Tensor] = imagenet.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # no network (URLError is an OSError), or a damaged download
        raise UserError(
            f"model.pretrained=torchvision: {imagenet.url} could not be fetched ({error}); "
            "download it elsewhere and type model.pretrained=path/to/the/file.pth"
        ) from error
    return state


def _read(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise UserError(
            f"model.pretrained: there is no file {path}; type null, torchvision, "
            "or the path of a .safetensors or .pt file that holds a network's state"
        )
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"model.pretrained: {path} cannot be read as tensors ({first_line}); "
            "save it with torch.save(net.state_dict(), ...) or safetensors.torch.save_file"
        ) from error
    if not (isinstance(state, Mapping) and all(isinstance(value, Tensor) for value in state.values())):
        raise UserError(
            f"model.pretrained: {path} holds more than a network's state (names to tensors); "
            "save net.state_dict() alone"
        )
    return state


def _renamed(state: Mapping[str, Tensor], head: str) -> dict[str, Tensor]:
    """Our names for torchvision's: the head is `head.*`, the rest `body.*`."""
    if any(name.startswith("body.") for name in state):
        return dict(state)
    return {
        f"head.{name.removeprefix(f'{head}.')}" if name.startswith(f"{head}.") else f"body.{name}": value
        for name, value in state.items()
    }


def _fit(state: dict[str, Tensor], own: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or unknown:
        raise UserError(
            f"model.pretrained={source} is for another network: it lacks {_some(missing)} and has {_some(unknown)}; "
            "choose the model= that the file was made with"
        )
    head = {name for name in own if name.startswith("head.")}
    if any(state[name].shape != own[name].shape for name in head):
        log.info("model.pretrained=%s has another number of classes: the head starts fresh", source)
        state = state | {name: own[name] for name in head}
    return {name: _adapted(name, value, own[name], source) for name, value in state.items()}


def _adapted(name: str, value: Tensor, own: Tensor, source: str) -> Tensor:
    if value.shape == own.shape:
        return value
    if value.ndim == 4 and value.shape[1] == 3 and own.shape[1] == 1 and value[:, :1].shape == own.shape:
        return value.sum(dim=1, keepdim=True)
    raise UserError(
        f"model.pretrained={source}: {name} is {tuple(value.shape)} there and {tuple(own.shape)} here; "
        "the model's settings and the image size must be those the file was made with"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "nothing"
