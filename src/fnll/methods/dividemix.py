"""DivideMix: two networks divide the samples for each other, and train on the doubtful ones without their labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fnll.federation import Federation, World
from fnll.lengths import Length
from fnll.local import Asking, Classifier, Fit, Frozen, LocalSpec, Predict, Split, Training
from fnll.methods.dividemix_local import Division, MixMatch, semi_loss, sharpen, warmup_loss
from fnll.methods.fedavg import FedAvg
from fnll.seeding import derive
from fnll.tools import TwoComponents, min_max
from fnll.types import Client, Memory, State, Update
from fnll.weights import Weights, join, part

__all__ = ["DivideMix", "semi_loss", "sharpen"]

PATHS: dict[str, tuple[str, ...]] = {"a": (), "b": ("b",)}  # the first network's batches are FedAvg's


@dataclass(frozen=True, kw_only=True)
class DivideMix(FedAvg):
    """Li et al., "DivideMix: Learning with Noisy Labels as Semi-supervised Learning", ICLR 2020, on FedAvg's clients.

    After a warm-up each network's losses are split by a two-component mixture, and the other network takes the
    low-loss samples for labelled, the rest for unlabelled (co-divide). Both kinds get targets from the networks'
    predictions (co-refinement, co-guessing) and are mixed up; the loss is L_x + λ_u L_u + L_reg (algorithm 1). Both
    networks travel and are averaged.

    Symbols: τ `p_threshold`; T `temperature`; α `alpha`; λ_u `lambda_u`; M = 2 views. docs/methods/dividemix.md says
    whose form each of the other settings is.
    """

    privileges: ClassVar[tuple[str, ...]] = ("two networks, both sent and returned in every round",)
    short_run: ClassVar[dict[str, Any]] = {"warmup": 2, "ramp": 2.0}
    limit_laws: ClassVar[dict[str, dict[str, Any]]] = {}  # two networks are judged together; see the page

    warmup: Annotated[int, Field(ge=0, description="rounds of cross-entropy before samples are divided"), Length()]
    warmup_epochs: Annotated[int, Field(ge=1, description="local epochs of the warm-up; null: as later")] | None
    confidence_penalty: bool
    p_threshold: Annotated[float, Field(ge=0, le=1, description="τ, above which a sample keeps its label")]
    temperature: Annotated[float, Field(gt=0, description="T of sharpening; 1 leaves targets as they are")]
    alpha: Annotated[float, Field(gt=0, description="α of mixup")]
    lambda_u: Annotated[float, Field(ge=0, description="λ_u weighs the unlabelled samples' loss")]
    ramp: Annotated[
        float, Field(ge=0, description="rounds (or epochs) over which λ_u grows from 0; 0: at once"), Length()
    ]
    ramp_start: (
        Annotated[int, Field(ge=0, description="the round it grows from; null: the end of the warm-up"), Length()]
        | None
    )
    ramp_clock: Literal["rounds", "epochs"]
    divide: Literal["epoch", "round"]
    judged: Literal["both", "first"]
    lr_drop: (
        Annotated[int, Field(ge=0, description="the round from which the rate is a tenth; null: never"), Length()]
        | None
    )
    eval_augment: bool
    eval_batch_size: Annotated[int, Field(ge=1, description="samples in one forward pass")]
    gmm_reg_covar: Annotated[float, Field(ge=0, description="added to the mixture's variances")]
    gmm_tol: Annotated[float, Field(ge=0, description="the gain below which the mixture's EM stops")]
    gmm_max_iter: Annotated[int, Field(ge=1, description="iterations of the mixture's EM")]

    def needs(self, world: World) -> int:
        """The warm-up, and a round in which samples are divided."""
        return (self.warmup + 1) * self.cohort_size

    # The server

    def init(self, fed: Federation, weights: Weights | None = None) -> State:
        """Two fresh networks, the first of them FedAvg's; or twice the one that an outer method hands over."""
        first = super().init(fed, weights).weights
        return State(join(a=first, b=self.net.fresh(fed.seed("net", "b")) if weights is None else weights))

    def round(self, state: State, fed: Federation) -> State:
        fed.record(stage="warm-up" if fed.t < self.warmup else "semi-supervised")
        return super().round(state, fed)

    def model(self, state: State) -> nn.Module:
        first, second = (self.net.load(part(state.weights, name)) for name in PATHS)
        return first if self.judged == "first" else Both(first, second)

    # The clients

    def train(self, client: Client, weights: Weights) -> Training:
        """Train both networks, one after the other, in every epoch."""
        nets = {name: part(weights, name) for name in PATHS}
        if client.t < self.warmup:
            return (yield from self.warm_up(client, nets))
        memory: dict[str, Tensor | Weights] = {}
        clean: dict[str, Tensor] = {}
        spec = replace(self._spec(client.t), epochs=1)
        for epoch in range(self.local.epochs):
            now = client.reseeded("epoch", epoch)
            if not clean or self.divide == "epoch":
                for name in PATHS:
                    clean[name] = yield from self.posterior(nets[name], now.reseeded("divide", name))
            for name, other in (("a", "b"), ("b", "a")):
                labelled = self.labelled(clean[other])
                module = MixMatch(
                    self.net.load(nets[name]),
                    spec,
                    client.t,
                    peer=Frozen(self.net.load(nets[other])),
                    division=Division(clean[other][labelled], client.data.index[~labelled]),
                    alpha=self.alpha,
                    temperature=self.temperature,
                    lambda_u=self.lambda_u,
                    ramp=self.ramp,
                    since=self.since(client.t, epoch),
                )
                own = _remembering(now.reseeded(name), memory).subset(labelled)
                trained = yield Fit(module, own, PATHS[name], views=2)
                nets[name] = trained.weights
                memory |= trained.memory
        both = (clean["a"] + clean["b"]) / 2 > self.p_threshold
        return Update(join(**nets), memory=memory, trace={"clean": both})

    def warm_up(self, client: Client, nets: Mapping[str, Weights]) -> Training:
        """Cross-entropy for both networks, each with batches of its own."""
        spec = self._spec(client.t)
        spec = replace(spec, epochs=self.warmup_epochs or spec.epochs)
        memory: dict[str, Tensor | Weights] = {}
        warm: dict[str, Weights] = {}
        for name, path in PATHS.items():
            net = self.net.load(nets[name])
            module = Classifier(net, spec, client.t, warmup_loss, penalty=self.confidence_penalty)
            trained = yield Fit(module, client, path)
            warm[name] = trained.weights
            memory |= trained.memory
        everything = torch.ones(len(client), dtype=torch.bool)
        return Update(join(**warm), memory=memory, trace={"clean": everything})

    def posterior(self, weights: Weights, client: Client) -> Asking[Tensor]:
        """w: each sample's probability of belonging to the mixture's low-loss component, (n,)."""
        logits = yield Predict(self.net.load(weights), client, self.eval_augment, self.eval_batch_size)
        losses = F.cross_entropy(logits, client.data.y, reduction="none").double()
        finite = losses[losses.isfinite()]
        top = float(finite.max()) if len(finite) else 0.0
        scaled = min_max(losses.nan_to_num(nan=top, posinf=top), when_flat=0.0)
        seed = derive(client.seed, "mixture")
        parts: TwoComponents = yield Split(scaled, seed, self.gmm_reg_covar, self.gmm_tol, self.gmm_max_iter)
        return parts.posterior

    def labelled(self, clean: Tensor) -> Tensor:
        """Which samples keep their labels, (n,): those above τ; a batch of the most probable ones if none is."""
        chosen = clean > self.p_threshold
        if not bool(chosen.any()):
            chosen[clean.argsort(descending=True, stable=True)[: self.local.batch_size]] = True
        return chosen

    def since(self, t: int, epoch: int) -> float:
        """How long the ramp of λ_u has lasted when a local epoch begins."""
        start = self.warmup if self.ramp_start is None else self.ramp_start
        return t - start if self.ramp_clock == "rounds" else (t - start) * self.local.epochs + epoch

    def _spec(self, t: int) -> LocalSpec:
        dropped = self.lr_drop is not None and t >= self.lr_drop
        return replace(self.local, lr=self.local.lr / 10) if dropped else self.local


class Both(nn.Module):
    """The mean of two networks' logits, whose largest is that of their sum."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return (self.first(x) + self.second(x)) / 2


def _remembering(client: Client, fresh: Memory) -> Client:
    """The client with what this job has remembered so far (a kept optimiser), for its next training."""
    return replace(client, memory={**client.memory, **fresh}) if fresh else client
