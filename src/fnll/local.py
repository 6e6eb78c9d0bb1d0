"""Local training: a LightningModule for the objective, and a lean loop that drives it on one client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from fnll.errors import require, require_at_least, require_between, require_integer, require_positive
from fnll.types import Batch, Client
from fnll.weights import Weights, snapshot

log = logging.getLogger(__name__)

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")  # weights are always float32; mixed ones compute in half


@dataclass(frozen=True, kw_only=True)
class LocalSpec:
    """How a client trains: shared by all methods, set once in the config."""

    epochs: int
    batch_size: int
    lr: float
    lr_decay: float  # the rate of round t is lr * lr_decay ** t
    optimizer: Callable[..., Optimizer]  # called with parameters and lr
    clip_norm: float | None  # largest gradient norm, or None
    keep_optimizer: bool  # carry momentum from round to round in the client's memory: for centralised recipes
    precision: str  # Fabric's name for it, one of PRECISIONS

    def __post_init__(self) -> None:
        require_integer("local.epochs", self.epochs, 1, "passes of a client over its data in one round")
        require_integer("local.batch_size", self.batch_size, 1, "samples in one step")
        require_positive("local.lr", self.lr, "the learning rate of round 0")
        require_positive("local.lr_decay", self.lr_decay, "the rate of round t is lr * lr_decay ** t")
        require(
            self.precision in PRECISIONS, f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}"
        )
        if self.clip_norm is not None:
            require_positive(
                "local.clip_norm", self.clip_norm, "the largest gradient norm; null leaves gradients alone"
            )


def sgd(*, momentum: float, weight_decay: float, **shared: Any) -> LocalSpec:
    """Stochastic gradient descent, as in FedCorr and FedRN."""
    require_between("local.momentum", momentum, 0, 1, "the share of the last step that is kept")
    require_at_least("local.weight_decay", weight_decay, 0, "the L2 penalty")
    optimizer = partial(torch.optim.SGD, momentum=momentum, weight_decay=weight_decay, fused=True)
    return LocalSpec(optimizer=optimizer, **shared)


def adam(*, betas: Iterable[float], weight_decay: float, **shared: Any) -> LocalSpec:
    """Adam with the penalty in the gradient (not AdamW), as in FedNoRo."""
    first, second = betas
    for name, beta in (("first", first), ("second", second)):
        require_between(f"local.betas ({name})", beta, 0, 1, "the decay of a running moment")
    require_at_least("local.weight_decay", weight_decay, 0, "the L2 penalty")
    optimizer = partial(torch.optim.Adam, betas=(first, second), weight_decay=weight_decay, fused=True)
    return LocalSpec(optimizer=optimizer, **shared)


class Classifier(L.LightningModule):
    """A network and the objective a client minimises. Methods subclass this to change the objective."""

    per_client: ClassVar[tuple[str, ...]] = ()
    """Tensor or number attributes that differ between clients of one cohort; all else follows from method and message.

    A class that overrides `loss` states this anew to allow `executor=cohort` to train its clients together.
    """

    def __init__(self, net: nn.Module, spec: LocalSpec, t: int = 0) -> None:
        super().__init__()
        self.net, self.spec, self.t = (
            net,
            spec,
            t,
        )  # only `net` is uploaded; helpers are plain attributes

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, batch: Batch) -> Tensor:
        """The mean loss of one batch; what most methods override."""
        return F.cross_entropy(self.net(batch.x), batch.y)

    def training_step(self, batch: Batch, index: int) -> Tensor | None:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return self.spec.optimizer(self.net.parameters(), lr=self.spec.lr * self.spec.lr_decay**self.t)


def fit(
    module: Classifier, client: Client, *path: int | str, views: int = 1, remembered: Weights | None = None
) -> tuple[Weights, Weights]:
    """Train `module` on one client; return the network's state and the optimisers' state, both detached.

    The second is empty unless `local.keep_optimizer` is set; pass it back as `remembered` to go on where it ended.
    """
    spec = module.spec
    module.to(client.device)
    step, optimizers = _stepper(module, client.device)
    if remembered:
        _restore(optimizers, remembered)
    module.train()
    epoch = -1
    for index, batch in enumerate(client.batches(spec.batch_size, spec.epochs, *path, views=views)):
        if batch.epoch != epoch:
            if epoch >= 0:
                module.on_train_epoch_end()
            module.on_train_epoch_start()
            epoch = batch.epoch
        try:
            step(batch, index)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            # BatchNorm over a single 1x1 sample has no variance: that step is left out, as no code can take it.
            log.info("client %d: skipped a batch of one sample that BatchNorm cannot take", client.id)
    if epoch >= 0:
        module.on_train_epoch_end()
    return snapshot(module.net), _state(optimizers) if spec.keep_optimizer else {}


def _stepper(module: Classifier, device: torch.device) -> tuple[Callable[[Batch, int], None], list[Optimizer]]:
    """One optimisation step as a function, and the optimisers it uses.

    Plain float32 modules with automatic optimisation are stepped directly: Fabric's wrappers would add nothing but time
    (a quarter of a small network's step). Manual optimisation and other precisions go through Fabric.
    """
    configured = module.configure_optimizers()
    optimizers = list(configured) if isinstance(configured, (list, tuple)) else [configured]
    spec = module.spec
    if spec.precision == "32-true" and module.automatic_optimization:
        (optimizer,) = optimizers

        def lean(batch: Batch, index: int) -> None:
            loss = module.training_step(batch, index)
            if loss is None:
                return
            for group in optimizer.param_groups:  # as zero_grad() does, without the 10 µs of its profiler hooks
                for parameter in group["params"]:
                    parameter.grad = None
            loss.backward()
            if spec.clip_norm is not None:
                nn.utils.clip_grad_norm_(module.net.parameters(), spec.clip_norm)
            optimizer.step()

        return lean, optimizers

    fabric = _fabric(device, spec.precision)
    wrapped, *managed = fabric.setup(module, *optimizers)

    def full(batch: Batch, index: int) -> None:
        with fabric.autocast():  # on one device Fabric calls steps directly, outside of its precision's context
            loss = module.training_step(batch, index)
        if not module.automatic_optimization or loss is None:
            return
        (optimizer,) = managed
        optimizer.zero_grad()
        fabric.backward(loss)
        if spec.clip_norm is not None:
            fabric.clip_gradients(wrapped, optimizer, max_norm=spec.clip_norm)
        optimizer.step()

    return full, optimizers


@lru_cache(maxsize=8)
def _fabric(device: torch.device, precision: str) -> L.Fabric:
    """One Fabric per process, device and precision; hardware only, no loggers and no callbacks."""
    devices = [device.index or 0] if device.type != "cpu" else 1
    return L.Fabric(accelerator=device.type, devices=devices, precision=precision)  # type: ignore[arg-type]


def _state(optimizers: list[Optimizer]) -> Weights:
    """Optimiser state as flat named tensors, which memory and checkpoints can hold."""
    return {
        f"{i}.{parameter}.{name}": torch.as_tensor(value).detach().cpu().clone()
        for i, optimizer in enumerate(optimizers)
        for parameter, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if value is not None
    }


def _restore(optimizers: list[Optimizer], remembered: Weights) -> None:
    for i, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for path, value in remembered.items():
            owner, parameter, name = path.split(".")
            if int(owner) == i:
                state.setdefault(int(parameter), {})[name] = value.clone()
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
