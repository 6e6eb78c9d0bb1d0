"""Co-teaching: two networks, each trained on the samples of a batch that the other one finds easy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fnll.federation import Federation, World
from fnll.lengths import Length
from fnll.local import Classifier, Fit, LocalSpec, Training
from fnll.methods.fedavg import FedAvg
from fnll.tools import evaluating
from fnll.types import Batch, Client, State, Update
from fnll.weights import ROUNDING, Weights, join, part

PEER = {"a": "b", "b": "a"}  # who chooses the samples of whom


@dataclass(frozen=True, kw_only=True)
class CoTeaching(FedAvg):
    """Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels", NeurIPS 2018.

    Algorithm 1 on each client of FedAvg, as in FedRN's comparison: in every batch each network ranks the samples by
    cross-entropy and hands the ⌊R(t) B⌋ smallest to its peer, which takes its step on the mean loss of these. What is
    remembered falls from all to a share 1 − τ over the first T_k rounds: R(t) = 1 − τ min{t / (T_k − 1), 1}. Both
    networks are sent, trained and averaged; network a is the one that is judged.

    Symbols: τ `forget_rate`; T_k `gradual`, in rounds; B `local.batch_size`.
    """

    privileges: ClassVar[tuple[str, ...]] = (
        "a noise rate (method.forget_rate), the same for all clients; told from the truth if it is set to the true one",
        "a second network, sent, trained and averaged beside the first: twice the traffic and the training",
    )
    short_run: ClassVar[dict[str, Any]] = {"gradual": 3}
    limit_laws: ClassVar[dict[str, dict[str, Any]]] = {"τ = 0: nothing is left out": {"forget_rate": 0.0}}

    forget_rate: Annotated[float, Field(ge=0, lt=1, description="τ: the share of each batch left out in the end")]
    gradual: Annotated[int, Field(ge=0, description="T_k: rounds until forget_rate is reached; 0 is at once"), Length()]

    def needs(self, world: World) -> int:
        """A round in which something is left out: with a ramp the first leaves out nothing."""
        return (1 if self.gradual == 0 else 2) * self.cohort_size

    # The server

    def init(self, fed: Federation, weights: Weights | None = None) -> State:
        """Network a starts as FedAvg's does, network b from weights of its own: equal ones would choose alike."""
        return State(join(a=super().init(fed, weights).weights, b=self.net.fresh(fed.seed("net", "b"))))

    def model(self, state: State) -> nn.Module:
        return self.net.load(part(state.weights, "a"))

    # The client

    def train(self, client: Client, weights: Weights) -> Training:
        module = self.module(client, weights)
        trained = yield Fit(module, client)
        chosen = easy_samples(module.net["b"], client, self.local.batch_size, module.forget_rate)
        return Update(trained.weights, memory=trained.memory, trace={"clean": chosen})

    def module(self, client: Client, weights: Weights) -> CoTaught:
        pair = nn.ModuleDict({name: self.net.load(part(weights, name)) for name in PEER})
        kind = CoTaught if self.local.clip_norm is None else CoTaughtApart
        return kind(pair, self.local, client.t, forget_rate=forget_rate_of(client.t, self.forget_rate, self.gradual))


class CoTaught(Classifier):
    """Two networks and the sum of their losses: neither loss depends on the other's weights, so one optimiser does."""

    net: nn.ModuleDict

    def __init__(self, net: nn.Module, spec: LocalSpec, t: int, *, forget_rate: float) -> None:
        super().__init__(net, spec, t)
        self.forget_rate = forget_rate  # of this round

    def losses(self, batch: Batch) -> list[Tensor]:
        """The mean loss of each network over the samples that its peer has chosen."""
        each = {name: F.cross_entropy(net(batch.x), batch.y, reduction="none") for name, net in self.net.items()}
        easy = {name: small_loss(losses.detach(), self.forget_rate) for name, losses in each.items()}
        return [each[name][easy[peer]].mean() for name, peer in PEER.items()]

    def loss(self, batch: Batch) -> Tensor:
        first, second = self.losses(batch)
        return first + second


class CoTaughtApart(CoTaught):
    """With an optimiser for each network, so that `local.clip_norm` bounds the gradient of each and not of both."""

    def __init__(self, net: nn.Module, spec: LocalSpec, t: int, *, forget_rate: float) -> None:
        super().__init__(net, spec, t, forget_rate=forget_rate)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [self.spec.optimizer_for(self.net[name].parameters(), self.t) for name in PEER]

    def training_step(self, batch: Batch, index: int) -> None:
        optimizers: Any = self.optimizers()
        for loss, optimizer in zip(self.losses(batch), optimizers, strict=True):
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()


def small_loss(losses: Tensor, forget_rate: float) -> Tensor:
    """Positions of the ⌊(1 − τ) B⌋ smallest of B `losses`, smallest first, and of one at least.

    Of equal losses the first comes first; one that is not a number counts as the largest. The released codes truncate
    the rounded product, so that (1 − 0.9) 10 = 0.99… leaves none of ten samples.
    """
    keep = max(1, math.floor((1 - forget_rate) * len(losses) + ROUNDING))
    return losses.argsort(stable=True)[:keep]


def forget_rate_of(t: int, forget_rate: float, gradual: int) -> float:
    """τ of round `t`: linear from 0 in round 0 to `forget_rate` in round T_k − 1, and constant from there."""
    return forget_rate * t / max(1, gradual - 1) if t < gradual else forget_rate


def easy_samples(net: nn.Module, client: Client, size: int, forget_rate: float) -> Tensor:
    """Which of a client's samples `net` would choose in one more epoch, as a mask (n,)."""
    chosen = torch.zeros(len(client), dtype=torch.bool)
    with evaluating(net), torch.no_grad():
        for batch in client.batches(size, 1, "chosen"):
            losses = F.cross_entropy(net(batch.x), batch.y, reduction="none")
            chosen[batch.index[small_loss(losses, forget_rate).cpu()]] = True
    return chosen
