"""FedCorr: find noisy clients by the dimension of their predictions, correct their labels, then train as usual."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fnll.errors import UserError, require
from fnll.federation import Federation, Method, World
from fnll.lengths import Horizon, Length, Staged
from fnll.local import Classifier, Fit, Predict, Training
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedcorr_labels import candidates, lid_score, noisy_samples, relabelled, sample_losses
from fnll.methods.fedcorr_local import Mixup, Preprocessing
from fnll.methods.fedcorr_visits import iteration, say_who_is_left_out, visits, waves
from fnll.seeding import derive
from fnll.tools import two_component_gmm
from fnll.types import Client, Each, State, Update
from fnll.weights import Weights

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FedCorrState(State):
    """What FedCorr's server learns. Tensors are (clients,) float64; NaN marks a client whose LID cannot be computed."""

    visits: tuple[tuple[int, ...], ...]  # this iteration's cohorts, one per round of stage 1
    lid: Tensor  # scores of this iteration; 0 until visited
    cumulative_lid: Tensor  # sum over the iterations that are over
    levels: Tensor  # μ̂_k of the last iteration
    noisy: tuple[int, ...]  # S_n of the last iteration
    usual: State | None  # of the method that does stage 3, once it has begun


@dataclass(frozen=True, kw_only=True)
class FedCorr(FedAvg):
    """Xu et al., "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022.

    Stage 1 visits every client once per iteration, one at a time; the server sums the clients' LID scores and splits
    them into clean and noisy clients, and noisy clients estimate their noise level from their losses and relabel the
    worst samples. Stage 2 fine-tunes on relatively clean clients and relabels the others. Stage 3 is any method.

    Symbols: T_1 `passes`; T_2 `finetune` (null: until the budget ends, without stage 3); γ of stage 1 `stage1_cohort`
    in clients (null: `cohort`); π `relabel_ratio`; θ `confidence`; κ `clean_level`; β `beta`; α `mixup_alpha`; k of LID
    `lid_neighbours`. T_3 is what the budget leaves. From `sample_loss` on, settings are where paper and code differ.

    Deviations from the paper are listed in docs/methods/fedcorr.md.
    """

    passes: Annotated[int, Field(ge=0, description="iterations of stage 1 (T_1)"), Length()]
    finetune: (
        Annotated[int, Field(ge=0, description="rounds of stage 2 (T_2); null: until the budget ends"), Length()] | None
    )
    stage1_cohort: (
        Annotated[int, Field(ge=1, description="clients in one round of stage 1; null: as many as later")] | None
    )
    correction: bool
    relabel_ratio: Annotated[float, Field(ge=0, le=1, description="π, the share of noisy samples to relabel")]
    confidence: Annotated[float, Field(ge=0, le=1, description="θ, the probability that a new label needs")]
    clean_level: Annotated[float, Field(ge=0, le=1, description="κ, the largest noise level of a clean client")]
    beta: Annotated[float, Field(ge=0, description="β weighs the proximal term; 0 switches it off")]
    mixup_alpha: Annotated[float, Field(gt=0, description="α of mixup; mixup_stages=[] switches mixup off")]
    mixup_stages: Sequence[Annotated[int, Field(ge=1, le=3)]]
    lid_neighbours: Annotated[int, Field(ge=2, description="k, the neighbours that LID looks at")]
    lid_cap: Annotated[float, Field(gt=0, description="the largest LID of one sample; null: no limit")] | None
    # What the paper says, then what the released code does
    sample_loss: Literal["cross_entropy", "double_softmax"]
    prox: Literal["squared", "norm_after_first_batch"]
    rank_model: Literal["global", "local"]
    rank_pool: Literal["noisy_samples", "all_samples"]
    conf_op: Literal["at_least", "above"]
    stage2_relabel_set: Literal["above_clean_level", "last_noisy_clients"]
    lid_small_n: Literal["shrink_k", "keep_k"]
    eval_augment: bool
    stage1_replacement: bool
    usual: Method | None

    privileges: ClassVar[tuple[str, ...]] = (
        "one LID score per client and iteration of stage 1",
        "one estimated noise level per noisy client and iteration of stage 1",
        "stage 1 trains clients one after the other",
    )
    short_run: ClassVar[Mapping[str, Any]] = {"passes": 2, "finetune": 1}
    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "without stages 1 and 2, and mixup in stage 1 only": {"passes": 0, "finetune": 0, "mixup_stages": [1]}
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.usual is None or 3 not in self.mixup_stages,
            "method.mixup_stages names stage 3, where method.usual has its own way; type 'method.mixup_stages=[1,2]'",
        )

    # The budget

    @classmethod
    def ahead(cls, name: str, settings: Mapping[str, Any], whole: Horizon) -> Horizon:
        """T_1 counts whole iterations of the budget; T_2 is a share of what these leave, and stage 3 has the rest."""
        size = settings["stage1_cohort"] or whole.cohort_size
        _, updates = iteration(_inhabited(whole.world), size, settings["stage1_replacement"])
        if name == "passes":
            return replace(whole, unit=max(1, updates))
        left = whole.after(settings["passes"] * updates)
        return left if name == "finetune" else left.after((settings["finetune"] or 0) * whole.cohort_size)

    def needs(self, world: World) -> int:
        """Stages 1 and 2, and one client update of what follows, or all that the method of stage 3 needs."""
        _, updates = iteration(_inhabited(world), self.stage1_cohort or self.cohort_size, self.stage1_replacement)
        last = self.usual.needs(world) if self.finetune is not None and isinstance(self.usual, Staged) else 1
        return self.passes * updates + (self.finetune or 0) * self.cohort_size + last

    # The server

    def init(self, fed: Federation, weights: Weights | None = None) -> FedCorrState:
        self._check_budget(fed)
        zeros = torch.zeros(fed.num_clients, dtype=torch.float64)
        cumulative = torch.where(torch.tensor(fed.sizes) > 0, zeros, torch.nan)
        start = super().init(fed, weights).weights
        return FedCorrState(start, visits=(), lid=zeros, cumulative_lid=cumulative, levels=zeros, noisy=(), usual=None)

    def round(self, state: FedCorrState, fed: Federation) -> FedCorrState:
        rounds, _ = self._iteration(fed)
        second = self.passes * rounds
        if fed.t < second:
            return self.preprocessing(state, fed, position=fed.t % rounds)
        if self.finetune is None or fed.t < second + self.finetune:
            return self.finetuning(state, fed, start=second)
        return self.usual_training(state, fed, start=second + self.finetune)

    def model(self, state: FedCorrState) -> nn.Module:  # type: ignore[override]
        if state.usual is not None and self.usual is not None:
            return self.usual.model(state.usual)
        return super().model(state)

    def preprocessing(self, state: FedCorrState, fed: Federation, position: int) -> FedCorrState:
        """One round of stage 1 (algorithm 1, lines 5 to 7), with all of `identification` after an iteration's last."""
        fed.record(stage="preprocessing")
        if position == 0:
            drawn = visits(fed.inhabited, self._stage1_cohort(fed), self.stage1_replacement, fed.rng("visits"))
            state = replace(state, visits=drawn, lid=torch.zeros_like(state.lid))
        updates = [
            update
            for wave in waves(state.visits[position])
            for update in fed.map(
                self.preprocess, wave, weights=state.weights, level=Each([float(state.levels[k]) for k in wave])
            )
        ]
        lid = state.lid.clone()
        for update in updates:
            lid[update.client] = update.report["lid"]
        state = replace(state, weights=self.aggregate(state, updates, fed), lid=lid)
        return self.identification(state, fed) if position == len(state.visits) - 1 else state

    def identification(self, state: FedCorrState, fed: Federation) -> FedCorrState:
        """The end of an iteration (lines 9 to 13): noisy clients, and on each of them noisy samples and new labels."""
        cumulative = state.cumulative_lid + state.lid
        scored = cumulative.isfinite().nonzero().flatten()
        visited = {k for cohort in state.visits for k in cohort}
        if fed.t < self._iteration(fed)[0]:  # in the first iteration; in later ones it would be the same again
            say_who_is_left_out(set(fed.inhabited), set(scored.tolist()), visited)
        split = two_component_gmm(cumulative[scored], seed=fed.seed("gmm"))
        noisy = scored[~split.low].tolist()
        weights = state.weights if self.correction else None
        levels = torch.zeros_like(state.levels)
        # Who was not visited (`stage1_replacement`) has no losses of this iteration to look at.
        for update in fed.map(self.inspect, [k for k in noisy if k in visited], weights=weights):
            levels[update.client] = update.report["level"]
        fed.record(
            noisy_clients=noisy,
            noise_levels=levels,
            lid=torch.where(cumulative.isfinite(), state.lid, torch.nan),
            cumulative_lid=cumulative,
            lid_gmm={"means": split.means, "variances": split.variances, "weights": split.weights},
        )
        return replace(state, cumulative_lid=cumulative, levels=levels, noisy=tuple(noisy))

    def finetuning(self, state: FedCorrState, fed: Federation, start: int) -> FedCorrState:
        """One round of stage 2 (lines 14 to 18): FedAvg among S_c, and after the last the other clients relabel."""
        clean = [k for k in fed.inhabited if state.levels[k] <= self.clean_level]
        if not clean:
            clean = sorted(fed.inhabited, key=lambda k: (float(state.levels[k]), k))[: self.cohort_size]
            if fed.t == start:
                log.warning("no client's noise level is at most %g; stage 2 uses %s", self.clean_level, sorted(clean))
        fed.record(stage="finetuning", **({"clean_clients": clean} if fed.t == start else {}))
        state = self._averaged(state, fed, fed.sample(self.cohort_size, among=clean), stage=2)
        if self.correction and self.finetune is not None and fed.t == start + self.finetune - 1:
            fed.map(self.relabel, self._stage2_relabel_set(state, fed), weights=state.weights)
        return state

    def usual_training(self, state: FedCorrState, fed: Federation, start: int) -> FedCorrState:
        """One round of stage 3 (lines 19 and 20): FedAvg, or the method that `usual` names, on the corrected labels."""
        fed.record(stage="usual")
        if self.usual is None:
            return self._averaged(state, fed, fed.sample(self.cohort_size), stage=3)
        inside = fed.sub("usual", start=start)
        inner = self.usual.init(inside, state.weights) if state.usual is None else state.usual
        inner = self.usual.round(inner, inside)
        return replace(state, weights=inner.weights, usual=inner)

    def _averaged(self, state: FedCorrState, fed: Federation, cohort: list[int], stage: int) -> FedCorrState:
        mixing = {"mixing": True} if stage in self.mixup_stages else {}  # otherwise the very message of FedAvg
        updates = fed.map(self.train, cohort, weights=state.weights, **mixing)
        return replace(state, weights=self.aggregate(state, updates, fed))

    def _stage2_relabel_set(self, state: FedCorrState, fed: Federation) -> list[int]:
        if self.stage2_relabel_set == "last_noisy_clients":
            return list(state.noisy)
        return [k for k in fed.inhabited if state.levels[k] > self.clean_level]

    def _stage1_cohort(self, fed: Federation) -> int:
        return min(self.stage1_cohort or self.cohort_size, max(1, len(fed.inhabited)))

    def _iteration(self, fed: Federation) -> tuple[int, int]:
        """Rounds and client updates of one iteration of stage 1."""
        return iteration(len(fed.inhabited), self.stage1_cohort or self.cohort_size, self.stage1_replacement)

    def _check_budget(self, fed: Federation) -> None:
        first = self.passes * self._iteration(fed)[1]
        needed = first + (self.finetune or 0) * self.cohort_size
        budget = fed.budget - fed.spent
        if needed < budget:
            return
        lower = {"method.passes": self.passes, "method.finetune": self.finetune}
        size = self.cohort_size
        raise UserError(
            f"FedCorr needs {needed} client updates before stage {2 if self.finetune is None else 3} begins, and the "
            f"budget is {budget} (rounds {budget // size} × {size} clients); raise rounds to at least "
            f"{needed // size + 1}, or lower "
            + " or ".join(f"{name} ({value})" for name, value in lower.items() if value)
            + (", or go without stage 3: method.finetune=null" if first < budget else "")
        )

    # The clients

    def prior(self, client: Client) -> Tensor | None:
        """Class counts that adjust the logits in every stage's training; none in FedCorr itself."""
        return None

    def module(self, client: Client, weights: Weights, mixing: bool = False) -> Classifier:
        """What stages 2 and 3 train."""
        counts = self.prior(client)
        if mixing or counts is not None:
            alpha = self.mixup_alpha if mixing else 0.0
            return Mixup(self.net.load(weights), self.local, client.t, alpha=alpha, counts=counts)
        return super().module(client, weights=weights)

    def preprocess(self, client: Client, weights: Weights, level: float) -> Training:
        """Train by equation 5, then score the trained model's predictions and remember the samples' losses."""
        module = Preprocessing(
            self.net.load(weights),
            self.local,
            client.t,
            alpha=self.mixup_alpha if 1 in self.mixup_stages else 0.0,
            anchor=weights,
            weight=self.beta * level,
            prox=self.prox,
            counts=self.prior(client),
        )
        trained = yield Fit(module, client)
        logits = yield Predict(module.net, client, self.eval_augment)
        score = lid_score(logits, self.lid_neighbours, self.lid_cap, self.lid_small_n)
        losses = sample_losses(logits, client.data.y, self.sample_loss)
        return Update(trained.weights, report={"lid": score}, memory={"losses": losses, **trained.memory})

    def inspect(self, client: Client, weights: Weights | None) -> Training:
        """Steps 2 and 3 of section 3.2: D^n and μ̂ from the remembered losses; with `weights`, new labels too."""
        losses = client.memory["losses"]
        assert isinstance(losses, Tensor)
        noisy = noisy_samples(losses, derive(client.seed, "gmm"))
        level = float(noisy.double().mean())
        verdict = Update(report={"level": level}, trace={"clean": ~noisy})
        if weights is None:
            return verdict
        logits = yield Predict(self.net.load(weights), client, self.eval_augment)
        ranking = losses if self.rank_model == "local" else sample_losses(logits, client.data.y, self.sample_loss)
        worst = candidates(ranking, noisy, self.relabel_ratio, self.rank_pool)
        return replace(verdict, labels=relabelled(client.data.y, logits, worst, self.confidence, self.conf_op))

    def relabel(self, client: Client, weights: Weights) -> Training:
        """The end of stage 2: the global model's label for every sample that it is sure of."""
        logits = yield Predict(self.net.load(weights), client, self.eval_augment)
        everything = torch.arange(len(client))
        return Update(labels=relabelled(client.data.y, logits, everything, self.confidence, self.conf_op))


def _inhabited(world: World) -> int:
    return sum(size > 0 for size in world.sizes)
