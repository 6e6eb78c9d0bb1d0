"""Local training: a LightningModule for the objective, and a lean loop that drives it on one client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from fnll.errors import (
    UserError,
    require,
    require_at_least,
    require_between,
    require_flag,
    require_integer,
    require_positive,
)
from fnll.types import Batch, Client
from fnll.weights import Weights, snapshot

log = logging.getLogger(__name__)

FULL, HALF = "32-true", "16-mixed"
PRECISIONS = (FULL, "bf16-mixed", HALF)  # weights are always float32; mixed ones compute in half


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
        if self.clip_norm is not None:
            require_positive("local.clip_norm", self.clip_norm, "the largest gradient norm; null: any")
        require_flag("local.keep_optimizer", self.keep_optimizer)
        known = ", ".join(PRECISIONS)
        require(self.precision in PRECISIONS, f"precision must be one of {known}, got {self.precision!r}")


def sgd(*, momentum: float, weight_decay: float, **shared: Any) -> LocalSpec:
    """Stochastic gradient descent, as in FedCorr and FedRN."""
    require_between("local.momentum", momentum, 0, 1, "the share of the last step that is kept")
    require_at_least("local.weight_decay", weight_decay, 0, "the L2 penalty")
    optimizer = partial(torch.optim.SGD, momentum=momentum, weight_decay=weight_decay, fused=_fused(shared))
    return LocalSpec(optimizer=optimizer, **shared)


def adam(*, betas: Sequence[float], weight_decay: float, **shared: Any) -> LocalSpec:
    """Adam with the penalty in the gradient (not AdamW), as in FedNoRo."""
    if not isinstance(betas, Sequence) or len(betas) != 2:
        raise UserError(f"local.betas must be two numbers, got {betas}; type local.betas=[0.9,0.999]")
    first, second = betas
    for name, beta in (("first", first), ("second", second)):
        require_between(f"local.betas ({name})", beta, 0, 1, "the decay of a running moment")
        require(beta < 1, f"local.betas ({name}) must be less than 1, got {beta}; at 1 a moment would never move")
    require_at_least("local.weight_decay", weight_decay, 0, "the L2 penalty")
    optimizer = partial(torch.optim.Adam, betas=(first, second), weight_decay=weight_decay, fused=_fused(shared))
    return LocalSpec(optimizer=optimizer, **shared)


def _fused(shared: dict[str, Any]) -> bool:
    """One kernel for the whole step; in half precision such an optimiser unscales by itself, too late for clipping."""
    return shared.get("precision") != HALF


class Classifier(L.LightningModule):
    """A network and the objective a client minimises. Methods subclass this to change the objective."""

    per_client: ClassVar[tuple[str, ...]] = ()
    """Tensor or number attributes that differ between clients of one cohort; all else follows from method and message.

    A class that overrides `loss` states this anew to allow `executor=cohort` to train its clients together.
    """

    def __init__(self, net: nn.Module, spec: LocalSpec, t: int = 0) -> None:
        super().__init__()
        self.net = net  # the one part that is uploaded; helpers of an objective are attributes of their own
        self.spec = spec
        self.t = t  # the round, which the learning rate may depend on

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


Step = Callable[[Batch, int], None]


def _stepper(module: Classifier, device: torch.device) -> tuple[Step, list[Optimizer]]:
    """One optimisation step as a function, and the optimisers it uses."""
    configured = module.configure_optimizers()
    optimizers = list(configured) if isinstance(configured, (list, tuple)) else [configured]
    if not module.automatic_optimization:
        return _manual(module, optimizers, device), optimizers
    (optimizer,) = optimizers
    lean = module.spec.precision == FULL
    return (_lean(module, optimizer) if lean else _mixed(module, optimizer, device)), optimizers


def _lean(module: Classifier, optimizer: Optimizer) -> Step:
    """Full precision: no Fabric, whose wrappers would add a quarter to a small network's step and nothing else."""
    clip_norm = module.spec.clip_norm

    def step(batch: Batch, index: int) -> None:
        loss = module.training_step(batch, index)
        if loss is None:
            return
        for group in optimizer.param_groups:  # as zero_grad() does, without the 10 µs of its profiler hooks
            for parameter in group["params"]:
                parameter.grad = None
        loss.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(module.net.parameters(), clip_norm)
        optimizer.step()

    return step


def _mixed(module: Classifier, optimizer: Optimizer, device: torch.device) -> Step:
    """Mixed precision: Fabric casts, scales the loss where half precision needs it, and steps."""
    clip_norm = module.spec.clip_norm
    fabric = _fabric(device, module.spec.precision)
    managed: Any = fabric.setup_optimizers(optimizer)

    def step(batch: Batch, index: int) -> None:
        with fabric.autocast():
            loss = module.training_step(batch, index)
        if loss is None:
            return
        managed.zero_grad()
        fabric.backward(loss)
        if clip_norm is not None:
            fabric.clip_gradients(module, managed, max_norm=clip_norm)
        managed.step()

    return step


def _manual(module: Classifier, optimizers: list[Optimizer], device: torch.device) -> Step:
    """Manual optimisation: the module steps by itself, with `self.optimizers()` and `self.manual_backward(loss)`.

    Those two ask the Fabric that a module was set up with. `Fabric.setup` would also keep every client's module for
    good, as a callback that each later step of any client goes through; so the module is told directly.
    """
    fabric = _fabric(device, module.spec.precision)
    module.fabric = fabric
    plain = module.spec.precision == FULL  # where Fabric's own optimisers add nothing
    module._fabric_optimizers = [o if plain else fabric.setup_optimizers(o) for o in optimizers]  # type: ignore[misc]

    def step(batch: Batch, index: int) -> None:
        with fabric.autocast():
            module.training_step(batch, index)

    return step


def _fabric(device: torch.device, precision: str) -> L.Fabric:
    """A Fabric for hardware only, without loggers and callbacks: one per process, device and precision.

    Half precision's carries the scale of the loss from step to step; there each fit has its own, since a job must not
    depend on the clients before it.
    """
    return _made_fabric(device, precision) if precision == HALF else _shared_fabric(device, precision)


def _made_fabric(device: torch.device, precision: str) -> L.Fabric:
    devices = [device.index or 0] if device.type != "cpu" else 1
    return L.Fabric(accelerator=device.type, devices=devices, precision=precision)  # type: ignore[arg-type]


_shared_fabric = lru_cache(maxsize=8)(_made_fabric)


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
