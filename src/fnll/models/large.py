"""Residual networks and VGG-11, made from torchvision's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torchvision.models import (
    ResNet18_Weights,
    ResNet50_Weights,
    VGG11_Weights,
)
from torchvision.models import (
    resnet18 as torchvision_resnet18,
)
from torchvision.models import (
    resnet50 as torchvision_resnet50,
)
from torchvision.models import (
    vgg11 as torchvision_vgg11,
)
from torchvision.models.resnet import BasicBlock, ResNet

from fnll.models.network import Network, Pretrained, Shape, require_size
from fnll.models.pretrained import start_from
from fnll.settings import checked


@checked("model")
def cifar_resnet18(*, num_classes: int, input_shape: Shape, pretrained: Pretrained = None) -> Network:
    """ResNet-18 for small images (He et al. 2016): 3x3 stem, no max-pooling, average pooling over what is left."""
    return start_from(_cifar_resnet([2, 2, 2, 2], num_classes, input_shape), pretrained, head="fc")


@checked("model")
def cifar_resnet34(*, num_classes: int, input_shape: Shape, pretrained: Pretrained = None) -> Network:
    """ResNet-34 for small images, otherwise as `cifar_resnet18`."""
    return start_from(_cifar_resnet([3, 4, 6, 3], num_classes, input_shape), pretrained, head="fc")


@checked("model")
def resnet18(*, num_classes: int, input_shape: Shape, pretrained: Pretrained = None) -> Network:
    """torchvision's ResNet-18 with a head of `num_classes`."""
    net = _resnet(torchvision_resnet18, num_classes, input_shape)
    return start_from(net, pretrained, head="fc", imagenet=ResNet18_Weights.IMAGENET1K_V1)


@checked("model")
def resnet50(*, num_classes: int, input_shape: Shape, pretrained: Pretrained = None) -> Network:
    """torchvision's ResNet-50 with a head of `num_classes`."""
    net = _resnet(torchvision_resnet50, num_classes, input_shape)
    return start_from(net, pretrained, head="fc", imagenet=ResNet50_Weights.IMAGENET1K_V1)


@checked("model")
def vgg11(*, num_classes: int, input_shape: Shape, pretrained: Pretrained = None) -> Network:
    """torchvision's VGG-11 with a head of `num_classes`.

    DEVIATION: FedCorr's released code hangs a new head on an attribute that VGG never uses and so trains the 1000-way
    ImageNet head; its table 10 can only mean the network built here.
    """
    require_size("vgg11", input_shape, 32, "type model=small_cnn or use a data set of larger images")
    body: Any = torchvision_vgg11(weights=None, num_classes=num_classes)
    body.features[0] = _for_channels(body.features[0], input_shape[0])
    head = body.classifier[6]
    body.classifier[6] = nn.Identity()
    return start_from(Network(body, head), pretrained, head="classifier.6", imagenet=VGG11_Weights.IMAGENET1K_V1)


def _cifar_resnet(layers: list[int], num_classes: int, input_shape: Shape) -> Network:
    body: Any = ResNet(BasicBlock, layers, num_classes)
    body.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
    body.maxpool = nn.Identity()
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            module.reset_parameters()  # PyTorch's own, as FedCorr's network has; torchvision's is 2.4 times wider
    return _split(body)


def _resnet(build: Callable[..., ResNet], num_classes: int, input_shape: Shape) -> Network:
    body: Any = build(weights=None, num_classes=num_classes)
    body.conv1 = _for_channels(body.conv1, input_shape[0])
    return _split(body)


def _split(body: Any) -> Network:
    head = body.fc
    body.fc = nn.Identity()
    return Network(body, head)


def _for_channels(stem: nn.Conv2d, channels: int) -> nn.Conv2d:
    """A stem for images with other than three channels, initialised as torchvision does."""
    if channels == stem.in_channels:
        return stem
    other = nn.Conv2d(
        channels,
        stem.out_channels,
        (stem.kernel_size[0], stem.kernel_size[1]),
        (stem.stride[0], stem.stride[1]),
        (int(stem.padding[0]), int(stem.padding[1])),
        bias=stem.bias is not None,
    )
    nn.init.kaiming_normal_(other.weight, mode="fan_out", nonlinearity="relu")
    if other.bias is not None:
        nn.init.zeros_(other.bias)
    return other
