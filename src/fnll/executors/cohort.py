"""Many clients in one vectorised call: stacked parameters and `torch.func.vmap` over the standard local training.

Close to `Serial`, not bit-identical: batched kernels group sums differently, so `exact` is False and `numerics:
vectorised` is part of a run's identity. It pays for small networks, whose steps are bound by overhead. Whatever
cannot be vectorised is done by `Serial`, with one line in the log.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fnll.errors import require_integer
from fnll.executors.numerics import limit_threads
from fnll.executors.serial import perform
from fnll.executors.stacked import stacked_optimizer, vectorisable_optimizer
from fnll.local import Classifier
from fnll.methods.fedavg import FedAvg
from fnll.scenario.scenario import Scenario
from fnll.seeding import scoped
from fnll.types import CPU, Batch, Call, Client, Update
from fnll.weights import Weights

log = logging.getLogger(__name__)

PARTS = ("x", "y", "index")  # of a batch


@dataclass(frozen=True)
class Prepared:
    """A standard training, ready to be stacked with others of its kind."""

    method: FedAvg
    module: Classifier
    client: Client


class NotTogetherError(Exception):
    """Why clients must train alone, found out in their first step."""


@dataclass
class Cohort:
    """Clients of the same kind trained together, at most `chunk` at a time."""

    scenario: Scenario
    device: torch.device = CPU
    threads: int = 1
    chunk: int = 64
    said: set[str] = field(default_factory=set)
    exact = False
    numerics = "vectorised"
    revision = 2  # raised by every change of its numbers; `fnll.NUMBERS` is for those of the exact executors

    def __post_init__(self) -> None:
        require_integer("executor.threads", self.threads, 1, "the torch threads of one process")
        require_integer("executor.chunk", self.chunk, 1, "clients that are trained in one vectorised call")
        limit_threads(self.threads)

    def map(self, calls: Sequence[Call]) -> list[Update]:
        done: dict[int, Update] = {}
        groups: dict[object, list[tuple[int, Prepared]]] = defaultdict(list)
        for i, call in enumerate(calls):
            prepared = self._prepare(call)
            if isinstance(prepared, str):
                self._say(call, prepared)
                done[i] = perform(self.scenario, call, self.device)
            else:
                groups[type(prepared.module), _signature(call.message)].append((i, prepared))
        for group in groups.values():
            for start in range(0, len(group), self.chunk):
                part = group[start : start + self.chunk]
                try:
                    trained = train_together([one for _, one in part])
                except NotTogetherError as reason:
                    for i, _ in part:
                        self._say(calls[i], str(reason))
                        done[i] = perform(self.scenario, calls[i], self.device)
                    continue
                for (i, one), weights in zip(part, trained, strict=True):
                    update = one.method.finish(one.module, one.client, weights)
                    whole = len(self.scenario.shards[one.client.id])  # also where the method trained on a part of it
                    done[i] = replace(update, client=one.client.id, size=whole if update.size is None else update.size)
        return [done[i] for i in range(len(calls))]

    def close(self) -> None:
        """Nothing to release."""

    def _prepare(self, call: Call) -> Prepared | str:
        """The module and client that the job would train, or the reason why it has to be done alone."""
        method = getattr(call.job, "__self__", None)
        if not isinstance(method, FedAvg) or getattr(call.job, "__func__", None) is not FedAvg.train:
            return "it is not the standard training job"
        client = self.scenario.client(
            call.client, t=call.t, memory=call.memory, labels=call.labels, seed=call.seed, device=self.device
        )
        with scoped(call.seed, self.device):
            module, client = method.prepare(client, **call.message)
        return why_not(module) or Prepared(method, module.to(self.device).train(), client)

    def _say(self, call: Call, reason: str) -> None:
        if call.name not in self.said:
            self.said.add(call.name)
            log.info("executor=cohort does job %s one client at a time: %s", call.name, reason)


def why_not(module: Classifier) -> str | None:
    """Why a module cannot be stacked, or None if it can."""
    kind = type(module)
    if not module.automatic_optimization or kind.training_step is not Classifier.training_step:
        return f"{kind.__name__} steps in its own way"
    hooks = ("on_train_epoch_start", "on_train_epoch_end")
    if any(getattr(kind, hook) is not getattr(Classifier, hook) for hook in hooks):
        return f"{kind.__name__} acts between epochs"
    owner = {name: next(i for i, c in enumerate(kind.__mro__) if name in vars(c)) for name in ("loss", "per_client")}
    if owner["per_client"] > owner["loss"]:
        return f"{kind.__name__} does not say in `per_client` what differs between clients"
    spec = module.spec
    if spec.precision != "32-true" or spec.clip_norm is not None or spec.keep_optimizer:
        return "mixed precision, clipped gradients and kept optimisers are not vectorised"
    if not vectorisable_optimizer(spec.optimizer):
        return "its optimiser is neither SGD nor Adam"
    if any(isinstance(part, nn.modules.dropout._DropoutNd) for part in module.net.modules()):
        return "dropout draws for one client at a time"
    if any(name.endswith("running_mean") for name, _ in module.net.named_buffers()):
        return "BatchNorm's running statistics cannot be vectorised"
    if not all(parameter.requires_grad for parameter in module.net.parameters()):
        return "some of its parameters are frozen"
    names = [name for name, _ in module.net.named_parameters(remove_duplicate=False)]
    return "parts of it share parameters" if len(names) > len(list(module.net.parameters())) else None


def _signature(message: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    """Equal for clients that were sent the same: numbers by value, everything else by identity."""
    plain = (int, float, str, bool, type(None))
    return tuple((name, value if isinstance(value, plain) else id(value)) for name, value in sorted(message.items()))


class _Loss(nn.Module):
    """A module's loss as a forward pass, so that its parameters can be swapped from outside."""

    def __init__(self, module: Classifier) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, y: Tensor, index: Tensor, differing: Sequence[Tensor]) -> Tensor:
        for name, value in zip(self.module.per_client, differing, strict=True):
            setattr(self.module, name, value)
        return self.module.loss(Batch((x,), y, index, 0, 0))


def train_together(group: Sequence[Prepared]) -> list[Weights]:
    """Local training of several clients at once; clients whose next batch has the same size step together."""
    module, spec, device = group[0].module, group[0].module.spec, group[0].client.device
    names = [name for name, _ in module.net.named_parameters()]
    columns = zip(*(one.module.net.parameters() for one in group), strict=True)
    params = [torch.stack([value.detach() for value in column]) for column in columns]
    attributes = [[torch.as_tensor(getattr(one.module, name)) for one in group] for name in module.per_client]
    differing = [torch.stack(column).to(device) for column in attributes]
    optimizer = stacked_optimizer(spec.optimizer, params, lr=spec.lr * spec.lr_decay**module.t)
    streams = [one.client.batches(spec.batch_size, spec.epochs) for one in group]
    with _losses(module, names) as losses:
        while batches := {k: batch for k, stream in enumerate(streams) if (batch := next(stream, None)) is not None}:
            by_size: dict[int, list[int]] = defaultdict(list)
            for k, batch in batches.items():
                by_size[len(batch.y)].append(k)
            for members in by_size.values():
                rows = None if len(members) == len(group) else torch.tensor(members, device=device)
                x, y, index = (torch.stack([getattr(batches[k], part) for k in members]) for part in PARTS)
                own = [value.detach().requires_grad_() for value in _rows(params, rows)]
                # A client's loss depends on its own row alone: the gradient of the sum is everyone's own gradient.
                total = losses(own, x, y, index, _rows(differing, rows)).sum()
                gradients = torch.autograd.grad(total, own, allow_unused=True)
                if any(gradient is None for gradient in gradients):
                    raise NotTogetherError("its loss leaves parameters unused")
                optimizer.step(gradients, rows)
    trained = dict(zip(names, params, strict=True))
    state = module.net.state_dict()
    return [
        {name: (trained[name][k] if name in trained else value).detach().cpu().clone() for name, value in state.items()}
        for k in range(len(group))
    ]


@contextmanager
def _losses(module: Classifier, names: Sequence[str]) -> Iterator[Callable[..., Tensor]]:
    """The losses of stacked clients, (clients,), as a function of their parameters, batches and differing attributes.

    Only the forward pass is vectorised by `vmap`; going backward through what it did is plain autograd, which spares
    the bookkeeping of `torch.func.grad`. In the end the module is as it was.
    """
    wrapped = _Loss(module)
    buffers = {f"module.net.{name}": value for name, value in module.net.named_buffers()}
    pools = [part for part in module.modules() if isinstance(part, nn.MaxPool2d)]
    hooks = [pool.register_forward_pre_hook(_channels_last) for pool in pools]
    before = {name: getattr(module, name) for name in module.per_client}

    def loss(own: Sequence[Tensor], *batch: Any) -> Tensor:
        params = {f"module.net.{name}": value for name, value in zip(names, own, strict=True)}
        return functional_call(wrapped, params | buffers, batch)

    try:
        yield vmap(loss)
    finally:
        for hook in hooks:
            hook.remove()
        for name, value in before.items():
            setattr(module, name, value)


def _channels_last(_: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor | None:
    """Vectorised convolutions leave channels first, where max-pooling on the CPU takes five times as long."""
    return inputs[0].movedim(-3, -1).contiguous().movedim(-1, -3) if inputs else None


def _rows(stacks: Sequence[Tensor], rows: Tensor | None) -> list[Tensor]:
    return list(stacks) if rows is None else [value[rows] for value in stacks]
