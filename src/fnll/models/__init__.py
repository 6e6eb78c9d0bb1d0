"""Networks: functions from keyword settings, `num_classes` and `input_shape` to a `Network`."""

from fnll.models.large import cifar_resnet18, cifar_resnet34, resnet18, resnet50, vgg11
from fnll.models.network import Network
from fnll.models.small import cnn4conv, lenet5, lenet_bn, mlp, small_cnn

__all__ = [
    "Network",
    "cifar_resnet18",
    "cifar_resnet34",
    "cnn4conv",
    "lenet5",
    "lenet_bn",
    "mlp",
    "resnet18",
    "resnet50",
    "small_cnn",
    "vgg11",
]
