"""Local training of one client: a lean loop that drives a `Classifier`, with Lightning's Fabric where it helps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fnll.errors import UserError
from fnll.local import FULL, HALF, Classifier, Fit, Trained
from fnll.types import Batch, Client
from fnll.weights import Weights, snapshot

log = logging.getLogger(__name__)

Step = Callable[[Batch, int], None]

# Lightning's hooks around a training step that this loop does not call: overriding one would be ignored in silence.
IGNORED = (
    "on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_batch_start", "on_train_batch_end",
    "on_before_backward", "on_after_backward", "on_before_zero_grad", "on_before_optimizer_step", "optimizer_step",
    "optimizer_zero_grad", "backward", "configure_gradient_clipping", "lr_scheduler_step", "configure_model",
    "configure_callbacks", "transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer",
    "train_dataloader",
)  # fmt: skip


class Rate(NamedTuple):
    """A learning-rate scheduler, and how often it steps."""

    scheduler: LRScheduler
    every_epoch: bool
    frequency: int


def fit(request: Fit) -> Trained:
    """Do what `request` asks for: train its module in place on its client."""
    module, client, spec = request.module, request.client, request.module.spec
    place(module, client.device)
    optimizers, rates = configured(module)
    remembered = client.memory.get(request.slot) if spec.keep_optimizer else None
    if isinstance(remembered, dict):
        _restore(optimizers, remembered)
    step = _stepper(module, optimizers, client.device)
    module.train()
    epoch = -1
    for index, batch in enumerate(batches(request)):
        if batch.epoch != epoch:
            if epoch >= 0:
                _end_epoch(module, rates, epoch)
            module.on_train_epoch_start()
            epoch = batch.epoch
        _take(step, module.draw(batch, client), index, client)
        _advance([rate for rate in rates if not rate.every_epoch], index)
    if epoch >= 0:
        _end_epoch(module, rates, epoch)
    kept = {request.slot: _state(optimizers)} if spec.keep_optimizer else {}
    return Trained(snapshot(module.net), {slot: state for slot, state in kept.items() if state})


def batches(request: Fit) -> Iterator[Batch]:
    """The batches that a request trains on, in order."""
    spec = request.module.spec
    return request.client.batches(spec.batch_size, spec.epochs, *request.path, views=request.views)


def place(module: Classifier, device: torch.device) -> None:
    """Move a module to a device, with the tensors among the facts of its objective."""
    module.to(device)
    if device.type != "cpu":
        module.facts = _on(module.facts, device)


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return {name: _on(part, device) for name, part in value.items()} if isinstance(value, Mapping) else value


def _take(step: Step, batch: Batch, index: int, client: Client) -> None:
    try:
        step(batch, index)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        # BatchNorm over a single 1x1 sample has no variance: that step is left out, as no code can take it.
        log.info("client %d: skipped a batch of one sample that BatchNorm cannot take", client.id)


# Optimisers and schedulers, in the forms that Lightning knows


def configured(module: Classifier) -> tuple[list[Optimizer], list[Rate]]:
    """What `configure_optimizers` returns, in any of the supported forms; the others are refused by name."""
    _refuse_ignored(cast(Any, type(module)))
    found = module.configure_optimizers()
    name = type(module).__name__
    rates: Sequence[Any] = ()
    if isinstance(found, Mapping):
        rates = [found["lr_scheduler"]] if "lr_scheduler" in found else ()
        found = [found.get("optimizer")]
    elif (
        isinstance(found, (list, tuple)) and len(found) == 2 and all(isinstance(part, (list, tuple)) for part in found)
    ):
        found, rates = found
    optimizers = list(found) if isinstance(found, (list, tuple)) else [found]
    if not optimizers or not all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
        raise UserError(
            f"{name}.configure_optimizers returned {type(found).__name__}; supported are an optimiser, a list of them, "
            "a dictionary with `optimizer` and `lr_scheduler`, and two lists of optimisers and schedulers"
        )
    if module.automatic_optimization and len(optimizers) > 1:
        raise UserError(
            f"{name} has {len(optimizers)} optimisers: set self.automatic_optimization = False and step them"
        )
    if not module.automatic_optimization and rates:
        raise UserError(f"{name} steps by itself, so nobody steps its schedulers; step them in `training_step`")
    _check_decay(module, optimizers)
    return optimizers, [_rate(rate, name) for rate in rates]


def _rate(found: Any, name: str) -> Rate:
    settings = dict(found) if isinstance(found, Mapping) else {"scheduler": found}
    scheduler = settings.pop("scheduler", None)
    interval, frequency = settings.pop("interval", "epoch"), settings.pop("frequency", 1)
    for idle in ("name", "strict"):
        settings.pop(idle, None)
    if settings or not isinstance(scheduler, LRScheduler) or hasattr(scheduler, "num_bad_epochs"):
        what = ", ".join(settings) or type(scheduler).__name__
        raise UserError(
            f"{name}: a scheduler with {what} is not supported; only schedulers that step by epoch or step are"
        )
    if interval not in ("epoch", "step"):
        raise UserError(f"{name}: a scheduler's interval is epoch or step, got {interval!r}")
    return Rate(scheduler, interval == "epoch", int(frequency))


def _check_decay(module: Classifier, optimizers: Sequence[Optimizer]) -> None:
    """Refuse a module that trains every round at the rate of round 0 although `local.lr_decay` says otherwise."""
    spec = module.spec
    if spec.lr_decay == 1 or module.t == 0:
        return
    if any(group["lr"] == spec.lr for optimizer in optimizers for group in optimizer.param_groups):
        raise UserError(
            f"{type(module).__name__}.configure_optimizers ignores local.lr_decay={spec.lr_decay}: return "
            "self.spec.optimizer_for(parameters, self.t), which knows the round"
        )


@lru_cache(maxsize=256)
def _refuse_ignored(kind: Any) -> None:
    for hook in IGNORED:
        if getattr(kind, hook) is not getattr(L.LightningModule, hook):
            raise UserError(
                f"{kind.__name__} overrides {hook}, which local training does not call; it calls draw, training_step, "
                "configure_optimizers, on_train_epoch_start and on_train_epoch_end"
            )


def _end_epoch(module: Classifier, rates: Sequence[Rate], epoch: int) -> None:
    module.on_train_epoch_end()
    _advance([rate for rate in rates if rate.every_epoch], epoch)


def _advance(rates: Sequence[Rate], count: int) -> None:
    for rate in rates:
        if (count + 1) % rate.frequency == 0:
            rate.scheduler.step()


# One optimisation step as a function


def _stepper(module: Classifier, optimizers: list[Optimizer], device: torch.device) -> Step:
    if not module.automatic_optimization:
        return _manual(module, optimizers, device)
    (optimizer,) = optimizers
    lean = module.spec.precision == FULL
    return _lean(module, optimizer) if lean else _mixed(module, optimizer, device)


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
    good, as a callback that each later step of any client goes through; so the module is told directly. Gradients are
    clipped when an optimiser steps, since the module does not know `local.clip_norm`.
    """
    fabric = _fabric(device, module.spec.precision)
    module.fabric = fabric
    plain = module.spec.precision == FULL  # where Fabric's own optimisers add nothing
    if module.spec.clip_norm is not None:
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(_clipping(module.spec.clip_norm))
    module._fabric_optimizers = [o if plain else fabric.setup_optimizers(o) for o in optimizers]  # type: ignore[misc]

    def step(batch: Batch, index: int) -> None:
        with fabric.autocast():
            module.training_step(batch, index)

    return step


def _clipping(norm: float) -> Callable[..., None]:
    def clip(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], norm)

    return clip


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


# The optimiser's state as flat named tensors, which memory and checkpoints can hold


def _state(optimizers: list[Optimizer]) -> Weights:
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
