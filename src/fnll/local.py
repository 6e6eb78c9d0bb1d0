"""What a client trains: settings, a LightningModule with the objective, and the request to fit it (`fnll.training`)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import lightning as L
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from fnll.settings import FieldsOf, check_fields, checked
from fnll.types import Batch, Client, Memory, Update
from fnll.weights import Weights

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]  # weights are always float32; mixed ones compute in half
FULL: Precision = "32-true"
HALF: Precision = "16-mixed"

Beta = Annotated[float, Field(ge=0, lt=1)]
WeightDecay = Annotated[float, Field(ge=0, description="the L2 penalty")]


@dataclass(frozen=True, kw_only=True)
class LocalSpec:
    """How a client trains: shared by all methods, set once in the config."""

    epochs: Annotated[int, Field(ge=1, description="passes of a client over its data in one round")]
    batch_size: Annotated[int, Field(ge=1, description="samples in one step")]
    lr: Annotated[float, Field(gt=0, description="the learning rate of round 0")]
    lr_decay: Annotated[float, Field(gt=0, description="the rate of round t is lr * lr_decay ** t")]
    optimizer: Callable[..., Optimizer]  # called with parameters and lr
    clip_norm: Annotated[float, Field(gt=0, description="the largest gradient norm; null: any")] | None
    keep_optimizer: bool  # carry momentum from round to round in the client's memory: for centralised recipes
    precision: Precision  # Fabric's name for it

    def optimizer_for(self, parameters: Iterable[nn.Parameter], t: int) -> Optimizer:
        """The optimiser of round `t`: what `configure_optimizers` returns, once for each network."""
        return self.optimizer(parameters, lr=self.lr * self.lr_decay**t)

    def __post_init__(self) -> None:
        check_fields(self, "local")


@checked("local")
def sgd(
    *,
    momentum: Annotated[float, Field(ge=0, le=1, description="the share of the last step that is kept")],
    weight_decay: WeightDecay,
    **shared: Annotated[Any, FieldsOf(LocalSpec)],
) -> LocalSpec:
    """Stochastic gradient descent, as in FedCorr and FedRN."""
    optimizer = partial(torch.optim.SGD, momentum=momentum, weight_decay=weight_decay, fused=_fused(shared))
    return LocalSpec(optimizer=optimizer, **shared)


@checked("local")
def adam(
    *,
    betas: Annotated[
        Sequence[Beta],
        Field(
            min_length=2, max_length=2, description="the decay of each running moment, as in local.betas=[0.9,0.999]"
        ),
    ],
    weight_decay: WeightDecay,
    **shared: Annotated[Any, FieldsOf(LocalSpec)],
) -> LocalSpec:
    """Adam with the penalty in the gradient (not AdamW), as in FedNoRo."""
    first, second = betas
    optimizer = partial(torch.optim.Adam, betas=(first, second), weight_decay=weight_decay, fused=_fused(shared))
    return LocalSpec(optimizer=optimizer, **shared)


def _fused(shared: dict[str, Any]) -> bool:
    """One kernel for the whole step; in half precision such an optimiser unscales by itself, too late for clipping."""
    return shared.get("precision") != HALF


Objective = Callable[..., Tensor]  # (net, batch, **facts) -> the batch's mean loss


class Classifier(L.LightningModule):
    """A network and the objective a client minimises.

    The objective is a function `objective(net, batch, **facts)` (cross-entropy by default), or a subclass's `loss`.
    Tensors and numbers among its facts and attributes may differ between clients that one executor trains together;
    clients with different words or other objects there are trained apart.

    Of Lightning's hooks these count: `training_step`, `configure_optimizers` (one optimiser, or several with manual
    optimisation; schedulers by epoch or step with automatic optimisation), `on_train_epoch_start` and
    `on_train_epoch_end`. Others are refused by name. See docs/add-a-method.md.
    """

    def __init__(
        self, net: nn.Module, spec: LocalSpec, t: int = 0, objective: Objective | None = None, **facts: Any
    ) -> None:
        super().__init__()
        self.net = net  # the one part that is uploaded; helpers of an objective are attributes of their own
        self.spec = spec
        self.t = t  # the round, which the learning rate may depend on
        self.objective, self.facts = objective, facts

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def draw(self, batch: Batch, client: Client) -> Batch:
        """What happens to a batch before the loss: everything random (mixup), from the client's own generators."""
        return batch

    def loss(self, batch: Batch) -> Tensor:
        """The mean loss of one batch; for modules with an objective of their own. Must not change the module."""
        if self.objective is None:
            return F.cross_entropy(self.net(batch.x), batch.y)
        return self.objective(self.net, batch, **self.facts)

    def training_step(self, batch: Batch, index: int) -> Tensor | None:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return self.spec.optimizer_for(self.net.parameters(), self.t)


class Frozen(nn.Module):
    """A helper network that only answers, such as a teacher: in evaluation mode for good, without gradients."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Frozen:
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@dataclass(frozen=True)
class Fit:
    """A job's request: train `module` on `client`. The job is sent back what was `Trained`.

    `path` tells a second training in one job from the first: its batches and its optimiser are its own.
    """

    module: Classifier
    client: Client
    path: tuple[int | str, ...] = ()
    views: int = 1  # differently augmented copies of each image in a batch

    @property
    def slot(self) -> str:
        """Where a client's memory keeps this training's optimiser, if `local.keep_optimizer` says so."""
        return "/".join(["optimizer", *map(str, self.path)])


class Trained(NamedTuple):
    """What a `Fit` came to; the module's own network holds the same weights."""

    weights: Weights
    memory: Memory  # for the job to hand back: the optimiser's state, or nothing


@dataclass(frozen=True)
class Predict:
    """A job's request: what `net` says of all of the client's samples.

    The job is sent logits in the samples' order, (n, C), on the CPU. `augment` shows one random view of each image;
    `size` matters only to networks that normalise by the batch.
    """

    net: nn.Module
    client: Client
    augment: bool = False
    size: int = 512


@dataclass(frozen=True)
class Split:
    """A job's request: part numbers, (n,), into low and high ones by a mixture.

    The job is sent `fnll.tools.TwoComponents`.
    """

    values: Tensor
    seed: int
    reg_covar: float = 1e-6
    tol: float = 1e-3
    max_iter: int = 100


Request = Fit | Predict | Split
Result = TypeVar("Result")
Asking = Generator[Request, Any, Result]  # a part of a job that asks on its way, for `yield from`
Training = Asking[Update]  # a job that asks for its training
