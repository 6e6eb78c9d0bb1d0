"""Convolutions of many lanes, each with filters of its own, as batched matrix products.

One grouped convolution would do, but is slow on a CPU where a lane has few channels, and slower still backward. Here
the patches under a filter are laid out as rows (im2col) and all lanes multiply at once. Activations keep their channels
last in memory, which is also what max-pooling is fastest with. The gradient of the input is a convolution of the
output's gradient with the filters turned around, so nothing is ever scattered.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST = 1 << 18  # numbers in the patches of one lane; larger layers are bound by arithmetic, not by overhead

Pair = tuple[int, int]


def convolve(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The layer on x (lanes, n, c, h, w) with filters (lanes, out, c, rows, columns) and bias (lanes, out)."""
    lanes, n, c, h, w = x.shape
    if _takes(layer) and n * h * w * weight[0, 0].numel() <= LARGEST:
        return Convolution.apply(x, weight, bias, layer.padding)
    settings: Any = (layer.stride, layer.padding, layer.dilation, lanes * layer.groups)
    together = x.transpose(0, 1).reshape(n, lanes * c, h, w)
    result = F.conv2d(together, weight.flatten(0, 1), None if bias is None else bias.flatten(), *settings)
    return result.unflatten(1, (lanes, -1)).transpose(0, 1)


def _takes(layer: nn.Conv2d) -> bool:
    """Stride 1, every channel with every other, and no more padding than a filter covers."""
    if isinstance(layer.padding, str) or layer.stride != (1, 1) or layer.dilation != (1, 1) or layer.groups != 1:
        return False
    return all(p < k for p, k in zip(layer.padding, layer.kernel_size, strict=True))


class Convolution(torch.autograd.Function):
    """Stride 1; each lane by itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
        lanes, out, c, rows, columns = weight.shape
        patches, (height, width) = _patches(x, (rows, columns), padding)
        filters = weight.permute(0, 3, 4, 2, 1).reshape(lanes, rows * columns * c, out)
        if bias is None:
            result = torch.bmm(patches, filters)
        else:
            result = torch.baddbmm(bias[:, None], patches, filters)
        ctx.save_for_backward(patches, weight)
        ctx.padding = padding
        return result.view(lanes, x.shape[1], height, width, out).movedim(-1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        patches, weight = ctx.saved_tensors
        lanes, out, c, rows, columns = weight.shape
        flat = gradient.movedim(2, -1).reshape(lanes, -1, out)
        of_weight = of_bias = of_x = None
        if ctx.needs_input_grad[1]:
            of_weight = torch.bmm(patches.transpose(1, 2), flat)
            of_weight = of_weight.view(lanes, rows, columns, c, out).permute(0, 4, 3, 1, 2)
        if ctx.needs_input_grad[2]:
            of_bias = flat.sum(1)
        if ctx.needs_input_grad[0]:
            around = (rows - 1 - ctx.padding[0], columns - 1 - ctx.padding[1])
            seen, (height, width) = _patches(gradient, (rows, columns), around)
            turned = weight.flip(3, 4).permute(0, 3, 4, 1, 2).reshape(lanes, rows * columns * out, c)
            of_x = torch.bmm(seen, turned).view(lanes, gradient.shape[1], height, width, c).movedim(-1, 2)
        return of_x, of_weight, of_bias, None


def _patches(x: Tensor, kernel: Pair, padding: Pair) -> tuple[Tensor, Pair]:
    """What lies under the filter, (lanes, n * height * width, rows * columns * c), and its places (height, width)."""
    lanes, n, c, h, w = x.shape
    (rows, columns), (down, right) = kernel, padding
    height, width = h + 2 * down - rows + 1, w + 2 * right - columns + 1
    images = F.pad(x.movedim(2, -1), (0, 0, right, right, down, down)).contiguous()
    lane, image, line, pixel, channel = images.stride()
    if c == 1:  # copied in runs of a line, not of the few columns of a filter
        shape = (lanes, rows, columns, n, height, width)
        runs = images.as_strided(shape, (lane, line, pixel, image, line, pixel))
        return runs.reshape(lanes, rows * columns, n * height * width).transpose(1, 2), (height, width)
    every = (lanes, n, height, width, rows, columns, c)
    runs = images.as_strided(every, (lane, image, line, pixel, line, pixel, channel))
    return runs.reshape(lanes, n * height * width, rows * columns * c), (height, width)
