"""FedCorr: find noisy clients by the dimension of their predictions, correct their labels, then train as usual."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fnll.errors import (
    UserError,
    require,
    require_at_least,
    require_between,
    require_integer,
    require_positive,
)
from fnll.federation import Federation
from fnll.local import Classifier, fit
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedcorr_labels import candidates, lid_score, noisy_samples, relabelled, sample_losses
from fnll.methods.fedcorr_local import Mixup, Preprocessing
from fnll.methods.fedcorr_visits import say_who_is_left_out, visits, waves
from fnll.noisy import predict, two_component_gmm
from fnll.seeding import derive
from fnll.types import Client, Each, Method, State, Update
from fnll.weights import Weights

log = logging.getLogger(__name__)

# What the paper says | what the released code does (methods.md, section 11)
SWITCHES = {
    "sample_loss": ("cross_entropy", "double_softmax"),
    "prox": ("squared", "norm_after_first_batch"),
    "rank_model": ("global", "local"),
    "rank_pool": ("noisy_samples", "all_samples"),
    "conf_op": ("at_least", "above"),
    "stage2_relabel_set": ("above_clean_level", "last_noisy_clients"),
    "lid_small_n": ("shrink_k", "keep_k"),
    "eval_augment": (False, True),
    "stage1_replacement": (False, True),
}


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
    `lid_neighbours`. T_3 is what the budget leaves. `SWITCHES` are where paper and released code differ.

    Deviations from the paper are listed in docs/methods/fedcorr.md.
    """

    passes: int
    finetune: int | None
    stage1_cohort: int | None
    correction: bool
    relabel_ratio: float
    confidence: float
    clean_level: float
    beta: float
    mixup_alpha: float
    mixup_stages: Sequence[int]
    lid_neighbours: int
    lid_cap: float | None
    sample_loss: str
    prox: str
    rank_model: str
    rank_pool: str
    conf_op: str
    stage2_relabel_set: str
    lid_small_n: str
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
        require_integer("method.passes", self.passes, 0, "iterations of stage 1 (T_1)")
        if self.finetune is not None:
            require_integer("method.finetune", self.finetune, 0, "rounds of stage 2 (T_2); null: until the budget ends")
        if self.stage1_cohort is not None:
            meaning = "clients in one round of stage 1; null: as many as later, without fraction scheduling"
            require_integer("method.stage1_cohort", self.stage1_cohort, 1, meaning)
        require_between("method.relabel_ratio", self.relabel_ratio, 0, 1, "π, the share of noisy samples to relabel")
        require_between("method.confidence", self.confidence, 0, 1, "θ, the probability that a new label needs")
        require_between("method.clean_level", self.clean_level, 0, 1, "κ, the largest noise level of a clean client")
        require_at_least("method.beta", self.beta, 0, "β weighs the proximal term; 0 switches it off")
        require_positive("method.mixup_alpha", self.mixup_alpha, "α of mixup; mixup_stages=[] switches mixup off")
        require_integer("method.lid_neighbours", self.lid_neighbours, 2, "k, the neighbours that LID looks at")
        if self.lid_cap is not None:
            require_positive("method.lid_cap", self.lid_cap, "the largest LID of one sample; null: no limit")
        self._check_choices()

    def _check_choices(self) -> None:
        for name, values in SWITCHES.items():
            value = getattr(self, name)
            require(value in values, f"method.{name} must be {values[0]} or {values[1]}, got {value!r}")
        require(isinstance(self.correction, bool), f"method.correction must be true or false, got {self.correction!r}")
        stages = self.mixup_stages
        require(
            isinstance(stages, Sequence) and not isinstance(stages, str) and set(stages) <= {1, 2, 3},
            f"method.mixup_stages is a list of stages out of 1, 2, 3, got {stages}",
        )
        require(
            not isinstance(self.usual, str),
            f"method.usual is a method, not the word {self.usual!r}; type method@method.usual={self.usual}",
        )
        require(
            self.usual is None or 3 not in stages,
            "method.mixup_stages names stage 3, where method.usual has its own way; type 'method.mixup_stages=[1,2]'",
        )

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
        state = replace(state, weights=self.aggregate(state, updates), lid=lid)
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
            clean = sorted(fed.inhabited, key=lambda k: (float(state.levels[k]), k))[: self.cohort]
            if fed.t == start:
                log.warning("no client's noise level is at most %g; stage 2 uses %s", self.clean_level, sorted(clean))
        fed.record(stage="finetuning", **({"clean_clients": clean} if fed.t == start else {}))
        state = self._averaged(state, fed, fed.sample(self.cohort, among=clean), stage=2)
        if self.correction and self.finetune is not None and fed.t == start + self.finetune - 1:
            fed.map(self.relabel, self._stage2_relabel_set(state, fed), weights=state.weights)
        return state

    def usual_training(self, state: FedCorrState, fed: Federation, start: int) -> FedCorrState:
        """One round of stage 3 (lines 19 and 20): FedAvg, or the method that `usual` names, on the corrected labels."""
        fed.record(stage="usual")
        if self.usual is None:
            return self._averaged(state, fed, fed.sample(self.cohort), stage=3)
        inside = fed.sub("usual", start=start)
        inner = self.usual.init(inside, state.weights) if state.usual is None else state.usual
        inner = self.usual.round(inner, inside)
        return replace(state, weights=inner.weights, usual=inner)

    def _averaged(self, state: FedCorrState, fed: Federation, cohort: list[int], stage: int) -> FedCorrState:
        mixing = {"mixing": True} if stage in self.mixup_stages else {}  # otherwise the very message of FedAvg
        updates = fed.map(self.train, cohort, weights=state.weights, **mixing)
        return replace(state, weights=self.aggregate(state, updates))

    def _stage2_relabel_set(self, state: FedCorrState, fed: Federation) -> list[int]:
        if self.stage2_relabel_set == "last_noisy_clients":
            return list(state.noisy)
        return [k for k in fed.inhabited if state.levels[k] > self.clean_level]

    def _stage1_cohort(self, fed: Federation) -> int:
        return min(self.stage1_cohort or self.cohort, max(1, len(fed.inhabited)))

    def _iteration(self, fed: Federation) -> tuple[int, int]:
        """Rounds and client updates of one iteration of stage 1."""
        clients, size = len(fed.inhabited), self._stage1_cohort(fed)
        return (clients // size, clients // size * size) if self.stage1_replacement else (-(-clients // size), clients)

    def _check_budget(self, fed: Federation) -> None:
        first = self.passes * self._iteration(fed)[1]
        needed = first + (self.finetune or 0) * self.cohort
        budget = fed.budget - fed.spent
        if needed < budget:
            return
        lower = {"method.passes": self.passes, "method.finetune": self.finetune}
        raise UserError(
            f"FedCorr needs {needed} client updates before stage {2 if self.finetune is None else 3} begins, and the "
            f"budget is {budget} (rounds {budget // self.cohort} × {self.cohort} clients); raise rounds to at least "
            f"{needed // self.cohort + 1}, or lower "
            + " or ".join(f"{name} ({value})" for name, value in lower.items() if value)
            + (", or go without stage 3: method.finetune=null" if first < budget else "")
        )

    # The clients

    def module(self, client: Client, weights: Weights, mixing: bool = False) -> Classifier:
        """What stages 2 and 3 train."""
        if mixing:
            return Mixup(self.net.load(weights), self.local, client, alpha=self.mixup_alpha)
        return super().module(client, weights)

    def preprocess(self, client: Client, weights: Weights, level: float) -> Update:
        """Train by equation 5, then score the trained model's predictions and remember the samples' losses."""
        module = Preprocessing(
            self.net.load(weights),
            self.local,
            client,
            alpha=self.mixup_alpha if 1 in self.mixup_stages else 0.0,
            anchor=weights,
            weight=self.beta * level,
            prox=self.prox,
        )
        trained, optimizer = fit(module, client, remembered=self.remembered(client))
        logits = predict(module.net, client, self.eval_augment)
        score = lid_score(logits, self.lid_neighbours, self.lid_cap, self.lid_small_n)
        losses = sample_losses(logits, client.data.y, self.sample_loss)
        return Update(
            trained,
            report={"lid": score},
            memory={"losses": losses, **({"optimizer": optimizer} if optimizer else {})},
        )

    def inspect(self, client: Client, weights: Weights | None) -> Update:
        """Steps 2 and 3 of section 3.2: D^n and μ̂ from the remembered losses; with `weights`, new labels too."""
        losses = client.memory["losses"]
        assert isinstance(losses, Tensor)
        noisy = noisy_samples(losses, derive(client.seed, "gmm"))
        level = float(noisy.double().mean())
        verdict = Update(report={"level": level}, trace={"clean": ~noisy})
        if weights is None:
            return verdict
        logits = predict(self.net.load(weights).to(client.device), client, self.eval_augment)
        ranking = losses if self.rank_model == "local" else sample_losses(logits, client.data.y, self.sample_loss)
        worst = candidates(ranking, noisy, self.relabel_ratio, self.rank_pool)
        return replace(verdict, labels=relabelled(client.data.y, logits, worst, self.confidence, self.conf_op))

    def relabel(self, client: Client, weights: Weights) -> Update:
        """The end of stage 2: the global model's label for every sample that it is sure of."""
        logits = predict(self.net.load(weights).to(client.device), client, self.eval_augment)
        everything = torch.arange(len(client))
        return Update(labels=relabelled(client.data.y, logits, everything, self.confidence, self.conf_op))
