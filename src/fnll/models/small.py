"""Networks for small images, quick on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import nn

from fnll.models.network import Network, Pretrained, Shape, Width, require_size
from fnll.models.pretrained import start_from
from fnll.settings import checked

Hidden = Annotated[
    Sequence[Width],
    Field(
        title="a list of widths, each of at least one unit",
        description="type model.hidden=[64], or [] for a linear model",
    ),
]

# Max-pooling comes before the ReLU in all of these: both orders give the same numbers and gradients (ReLU is monotone
# and has slope 0 at 0), and this one applies the ReLU to a quarter of the values.


@checked("model")
def mlp(*, num_classes: int, input_shape: Shape, hidden: Hidden, pretrained: Pretrained = None) -> Network:
    """A multi-layer perceptron on the flattened image; `hidden` are the widths of its ReLU layers (none: linear)."""
    widths = [math.prod(input_shape), *hidden]
    layers = [layer for fan_in, fan_out in pairwise(widths) for layer in (nn.Linear(fan_in, fan_out), nn.ReLU())]
    return start_from(Network(nn.Sequential(nn.Flatten(), *layers), nn.Linear(widths[-1], num_classes)), pretrained)


@checked("model")
def small_cnn(
    *, num_classes: int, input_shape: Shape, width: Width, hidden: Width, pretrained: Pretrained = None
) -> Network:
    """Two 3x3 convolutions (`width` and twice as many channels), each pooled by 2, and one hidden layer."""
    require_size("small_cnn", input_shape, 4, "type model=mlp")
    channels, height, breadth = input_shape
    body = nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (breadth // 4), hidden),
        nn.ReLU(),
    )
    return start_from(Network(body, nn.Linear(hidden, num_classes)), pretrained)


@checked("model")
def lenet5(*, num_classes: int, input_shape: Shape, pretrained: Pretrained = None) -> Network:
    """LeCun et al. 1998 as FedCorr trains it: ReLU and max-pooling; 61,706 numbers for ten classes of 32x32 grey."""
    require_size("lenet5", input_shape, 16, "type model=small_cnn")
    channels, height, width = input_shape
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    body = nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * rows * columns, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )
    return start_from(Network(body, nn.Linear(84, num_classes)), pretrained)


@checked("model")
def lenet_bn(*, num_classes: int, input_shape: Shape, pretrained: Pretrained = None) -> Network:
    """`lenet5` with batch normalisation after the second pooling, as in FedFixer's released code."""
    net = lenet5(num_classes=num_classes, input_shape=input_shape)
    assert isinstance(net.body, nn.Sequential)
    flatten = next(i for i, layer in enumerate(net.body) if isinstance(layer, nn.Flatten))
    layers = list(net.body)
    body = nn.Sequential(*layers[:flatten], nn.BatchNorm2d(16), *layers[flatten:])
    return start_from(Network(body, net.head), pretrained)


@checked("model")
def cnn4conv(*, num_classes: int, input_shape: Shape, width: Width, pretrained: Pretrained = None) -> Network:
    """FedRN's network: four blocks of 3x3 convolution, batch normalisation, ReLU and pooling by 2.

    Batch normalisation keeps no running statistics, so predictions depend on what else is in the batch (also in
    evaluation mode) and there is nothing but parameters to aggregate. At 32x32 the head is Linear(256 → classes).
    """
    require_size("cnn4conv", input_shape, 16, "type model=small_cnn")
    channels, height, breadth = input_shape
    blocks = [
        layer
        for fan_in in (channels, width, width, width)
        for layer in (
            nn.Conv2d(fan_in, width, 3, padding=1),
            nn.BatchNorm2d(width, track_running_stats=False),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
    ]
    body = nn.Sequential(*blocks, nn.Flatten())
    head = nn.Linear(width * (height // 16) * (breadth // 16), num_classes)
    return start_from(Network(body, head), pretrained)
