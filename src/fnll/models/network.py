"""The one shape every network has: a body that gives features and a linear head that gives logits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from fnll.errors import UserError

Shape = tuple[int, int, int]  # channels, height, width
Width = Annotated[int, Field(ge=1, description="a layer needs at least one unit")]
Pretrained = Annotated[str | None, Field(title="null, torchvision or the path of a file")]


class Network(nn.Module):
    """`head(features(x))`: what methods that look inside a network may rely on.

    The entries of its state are named `body.*` and `head.*`.
    """

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """The penultimate representation, (n, head.in_features)."""
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (n, num_classes)."""
        return self.head(self.body(x))


def require_size(name: str, input_shape: Shape, smallest: int, instead: str) -> None:
    """Demand images that survive the network's strides and poolings."""
    _, height, width = input_shape
    if min(height, width) < smallest:
        raise UserError(
            f"model={name} needs images of at least {smallest}x{smallest} pixels, these are {height}x{width}; {instead}"
        )
