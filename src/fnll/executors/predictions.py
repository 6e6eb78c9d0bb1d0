"""The predictions of many small networks at once: a forward pass with a dimension of lanes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fnll.executors.habits import NotTogetherError
from fnll.executors.lanes import built, hooked, tensors_of, walked
from fnll.executors.layers import stacked_layers
from fnll.local import Predict
from fnll.tools import evaluating
from fnll.types import Client

AT_ONCE = 1 << 19  # numbers of parameters and images in one pass: more would not stay in the caches
CLOSE = 1e-4  # how far an answer in company may be from that of the network alone, of its largest logit


def kind_of(request: Predict) -> Hashable | None:
    """Requests of one kind are met together; None: this one is met alone."""
    net, client = request.net, request.client
    shape = client.data.transform.shape(client.data.images.shape)
    if not 0 < len(client) * math.prod(shape) <= AT_ONCE:
        return None
    named = walked(net)
    parts = [part for _, part in named]
    if hooked(parts) or any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts):
        return None  # the latter may depend on what else is in the batch (`fnll.net.batch_dependent`)
    tensors = tuple((name, value.shape, value.dtype) for name, value in tensors_of(named).items())
    return "predictions", built(parts), tensors, shape, client.device


def predict_together(requests: Sequence[Predict], *, doubts: bool = True) -> list[Tensor]:
    """Logits of requests of one kind; with doubts, one of each pass is compared with its network's own answer."""
    for request in requests:
        if request.client.device.type != "cpu":
            request.net.to(request.client.device)
    images = _images(requests)
    found: dict[int, Tensor] = {}
    order = sorted(range(len(requests)), key=lambda i: len(images[i]))
    numbers = sum(value.numel() for value in tensors_of(walked(requests[0].net)).values()) + images[order[-1]].numel()
    lanes = max(1, AT_ONCE // numbers)
    for start in range(0, len(order), lanes):
        part = order[start : start + lanes]
        logits = _stacked([requests[i].net for i in part], [images[i] for i in part])
        if doubts:
            shortest = part[0]  # the one with the most padding
            _check(requests[shortest], images[shortest], logits[0])
        found |= {i: own[: len(images[i])] for i, own in zip(part, logits, strict=True)}
    return [found[i] for i in range(len(requests))]


def _stacked(nets: Sequence[nn.Module], images: Sequence[Tensor]) -> Tensor:
    """Logits of each network for its own images, (lanes, samples, C), padded with those for images of zeros."""
    states = [tensors_of(walked(net)) for net in nets]
    stacks = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    padded = nn.utils.rnn.pad_sequence(list(images), batch_first=True)
    first = nets[0]
    with evaluating(first), stacked_layers(first), torch.no_grad():
        return vmap(lambda own, x: functional_call(first, own, (x,)))(stacks, padded).cpu()


def _check(request: Predict, images: Tensor, logits: Tensor) -> None:
    """A network may look at more than each sample by itself, which neither its type nor its state tells."""
    with evaluating(request.net), torch.no_grad():
        alone = torch.cat([request.net(part) for part in images.split(request.size)]).cpu()
    own = logits[: len(alone)]
    scale = float(alone.abs().max())
    if own.shape != alone.shape or (scale < math.inf and not float((own - alone).abs().max()) <= CLOSE * scale):
        raise NotTogetherError("what its network says of a sample depends on the others that it is shown")


def _images(requests: Sequence[Predict]) -> list[Tensor]:
    """What each network is shown; images that nothing random happens to are taken from where they lie together."""
    found: dict[int, Tensor] = {}
    plain: dict[Hashable, list[int]] = defaultdict(list)
    for i, request in enumerate(requests):
        data = request.client.data
        if request.augment and data.transform.augmentations:
            found[i] = torch.cat([batch.x for batch in request.client.scan(request.size, augment=True)])
        else:
            plain[id(data.images), id(data.transform)].append(i)
    for members in plain.values():
        clients = [requests[i].client for i in members]
        found |= zip(members, _plain(clients), strict=True)
    return [found[i] for i in range(len(requests))]


def _plain(clients: Sequence[Client]) -> Sequence[Tensor]:
    data = clients[0].data
    pixels = data.images.take(torch.cat([client.data.index for client in clients]))
    return data.transform.plain(pixels.to(clients[0].device)).split([len(client) for client in clients])
