"""FedNoRo: find the noisy clients by their per-class losses, then distil on them and weigh them down by distance."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fnll.federation import Federation, World
from fnll.lengths import Length
from fnll.local import Classifier, Frozen, LocalSpec, Predict, Training
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedla import adjusted_cross_entropy
from fnll.methods.fednoro_aggregation import Distance, discounted, distance_aware
from fnll.methods.fednoro_detection import INDICATORS, Covariance, indicator_table, noisy_rows
from fnll.system.notices import warn_once
from fnll.tools import Variant, class_means, kd_ramp, la_kd
from fnll.types import Batch, Client, Each, State, Update
from fnll.weights import Weights, mean

__all__ = ["Detected", "Distilled", "FedNoRo", "distance_aware"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Detected(State):
    """The global weights and S_n, the clients taken for noisy; None until stage 1 is over."""

    noisy: frozenset[int] | None = None


@dataclass(frozen=True, kw_only=True)
class FedNoRo(FedAvg):
    """Wu et al., "FedNoRo: Towards Noise-Robust Federated Learning ...", IJCAI 2023.

    Stage 1: T_1 rounds of FedAvg with logit adjustment; then every client reports its mean loss per class, and a
    two-component Gaussian mixture over these vectors splits the clients into clean S_c and noisy S_n. Stage 2: noisy
    clients minimise λ KL(y_p, y_G) + (1 − λ) CE(y_p, y) with the global model as teacher, clean ones CE, all of them
    with logit adjustment; the server weighs client i by N_i e^{−D(i)}, D the distance to the nearest clean model.

    Symbols: T_1 `warmup`; λ_max `kd_weight`; T `temperature`. Ablations: table 3 `logit_adjustment`, `indicator`,
    `per_class`, `normalise`; table 4 `kd_weight: 0`, `distance: none`, `drop_noisy`. Where paper and released code
    differ: `component`, `eval_augment`, `ramp`, `kd_missing`, `distance`; see docs/methods/fednoro.md.
    """

    privileges: ClassVar[tuple[str, ...]] = (
        "one vector of per-class losses from every client, once",
        "one extra forward pass over all training data",
    )
    short_run: ClassVar[Mapping[str, Any]] = {"warmup": 3, "ramp_begin": 3, "ramp_rounds": 3}
    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "endless warm-up, every class equally often": {"warmup": 1_000_000},
        "no adjustment, no distillation, no distances": {
            "logit_adjustment": False,
            "kd_weight": 0.0,
            "distance": "none",
        },
    }

    warmup: Annotated[int, Field(ge=0, description="T_1, the rounds before noisy clients are looked for"), Length()]
    logit_adjustment: bool
    indicator: Literal["loss", "confidence", "lid"]  # what is averaged over a client's samples
    per_class: bool  # averages per class, or one over all samples
    normalise: bool  # equation 3: scale each class to [0, 1] over the clients
    component: Variant  # paper: one mixture, the smaller norm is clean; official: nine vote, the smaller sum is clean
    covariance: Covariance
    eval_augment: bool  # measure the indicator on augmented images
    kd_weight: Annotated[float, Field(ge=0, le=1, description="λ_max weighs distillation; 0 switches it off")]
    temperature: Annotated[float, Field(gt=0, description="T sharpens (below 1) or softens the teacher")]
    ramp: Variant  # paper: λ starts from 0; official: from λ_max e⁻⁵
    ramp_begin: Annotated[int, Field(ge=0, description="the round from which distillation's weight λ grows"), Length()]
    ramp_rounds: Annotated[int, Field(ge=0, description="how many rounds λ grows"), Length()]
    kd_missing: Variant  # classes a client lacks. paper: left out of KL; official: as if predicted with probability 1
    distance: (
        Distance  # paper: L2 over weights; official: sum of tensors' norms, BatchNorm's statistics too; none: FedAvg
    )
    drop_noisy: bool  # train on clean clients only

    def needs(self, world: World) -> int:
        """Stage 1, and a round of stage 2 in which distillation has begun, if there is any."""
        return (max(self.warmup, self.ramp_begin if self.kd_weight else 0) + 1) * self.cohort_size

    def init(self, fed: Federation, weights: Weights | None = None) -> Detected:
        rounds = fed.budget // self.cohort_size
        if self.warmup >= rounds:
            log.warning("method.warmup=%d leaves none of the %d rounds to FedNoRo's stage 2", self.warmup, rounds)
        return Detected(super().init(fed, weights).weights)

    def round(self, state: Detected, fed: Federation) -> State:
        if state.noisy is None and fed.t >= self.warmup:
            state = replace(state, noisy=self.detect(state, fed))
        if state.noisy is None:
            fed.record(stage="warm-up")
            return super().round(state, fed)
        cohort = self.select(state, fed)
        noisy = [k in state.noisy for k in cohort]
        kd = self.distillation(fed.t)
        message = {"weights": state.weights, "kd": Each([kd if suspect else 0.0 for suspect in noisy])}
        updates = fed.map(self.train, cohort, **message)
        models = [u.weights for u in updates if u.weights is not None]
        parts = discounted(models, [u.size or 0 for u in updates], noisy, self.distance)
        shares = {k: part / sum(parts) for k, part in zip(cohort, parts, strict=True)}
        fed.record(stage="robust", kd_weight=kd, agg_weights=shares)
        return replace(state, weights=mean(models, parts))

    # Between the stages

    def detect(self, state: Detected, fed: Federation) -> frozenset[int]:
        """S_n: one vector from every client that has data, and a mixture over them."""
        asked = fed.inhabited
        replies = fed.map(self.probe, asked, weights=state.weights)
        means = torch.stack([torch.as_tensor(reply.report["class_losses"]) for reply in replies])
        table = indicator_table(means, normalise=self.normalise)
        rows = noisy_rows(table, self.component, self.covariance, fed.seed("gmm"))
        noisy = frozenset(asked[row] for row in rows)
        if len(noisy) in (0, len(asked)):
            log.warning("FedNoRo takes %d of %d clients for noisy, so DaAgg is FedAvg", len(noisy), len(asked))
        everyone = range(fed.num_clients)
        fed.record(
            noisy_clients=noisy,
            class_losses=[means[asked.index(k)] if k in asked else None for k in everyone],
            indicator=[table[asked.index(k)] if k in asked else None for k in everyone],
        )
        return noisy

    def probe(self, client: Client, weights: Weights) -> Training:
        """A job: the indicator's mean over a client's samples of each class, (C,), or over all of them, (1,)."""
        logits = yield Predict(self.net.load(weights), client, self.eval_augment)
        values = INDICATORS[self.indicator](logits, client.data.y).double()
        if self.per_class:
            means = class_means(values, client.data.y, client.data.num_classes)
        else:
            means = values.mean(dim=0, keepdim=True)
        return Update(report={"class_losses": means})

    # Stage 2

    def select(self, state: Detected, fed: Federation) -> list[int]:
        if not (self.drop_noisy and state.noisy):
            return fed.sample(self.cohort_size)
        clean = set(fed.inhabited) - state.noisy
        if not clean:
            warn_once(log, "FedNoRo would drop every client as noisy, so it drops none")
        return fed.sample(self.cohort_size, among=clean or None)

    def distillation(self, t: int) -> float:
        """λ in round t: Laine and Aila's curve, which starts from e⁻⁵ of its top unless it is pulled down to 0."""
        weight = kd_ramp(t, self.ramp_begin, self.ramp_begin + self.ramp_rounds, self.kd_weight)
        if self.ramp == "official":
            return weight
        floor = math.exp(-5)
        return (weight - floor * self.kd_weight) / (1 - floor)

    def module(self, client: Client, weights: Weights, kd: float | None = None) -> Classifier:
        counts = client.class_counts() if self.logit_adjustment else torch.ones(client.data.num_classes)
        net = self.net.load(weights)
        if kd is None:
            return Classifier(net, self.local, client.t, adjusted_cross_entropy, counts=counts)
        teacher = self.net.load(weights)  # the weights just received: nothing extra is sent
        return Distilled(
            net,
            self.local,
            client.t,
            teacher=teacher,
            counts=counts,
            temperature=self.temperature,
            weight=kd,
            missing=self.kd_missing,
        )


class Distilled(Classifier):
    """Equation 5: the labels, and the answers of a teacher on the same augmented images.

    Clean clients have λ = 0: the same module as the noisy ones', so that an executor can train both together.
    """

    def __init__(
        self,
        net: nn.Module,
        spec: LocalSpec,
        t: int,
        *,
        teacher: nn.Module,
        counts: Tensor,
        temperature: float,
        weight: float,
        missing: Variant,
    ) -> None:
        super().__init__(net, spec, t)
        self.teacher = Frozen(teacher)
        self.counts, self.temperature = counts, temperature
        self.weight, self.missing = weight, missing  # λ, and what counts for classes that the client lacks

    def loss(self, batch: Batch) -> Tensor:
        if not isinstance(self.weight, Tensor) and self.weight == 0:  # a tensor where clients differ in it
            return adjusted_cross_entropy(self.net, batch, self.counts)
        target = (self.teacher(batch.x) / self.temperature).softmax(dim=1)  # y_G, equation 4
        return la_kd(self.net(batch.x), batch.y, target, self.counts, self.weight, self.missing)
