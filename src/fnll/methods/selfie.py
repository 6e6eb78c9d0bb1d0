"""SELFIE: train on samples of small loss, and on those whose predictions agree so well that they are relabelled."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fnll.federation import Federation, World
from fnll.lengths import Length
from fnll.local import Classifier, Fit, LocalSpec, Training
from fnll.methods.fedavg import FedAvg
from fnll.types import Batch, Client, Memory, State, Update
from fnll.weights import ROUNDING, Weights

log = logging.getLogger(__name__)

NOTHING = 0  # what a slot of the history holds before a prediction is written there: class 0, in the released codes


@dataclass(frozen=True, kw_only=True)
class Selfie(FedAvg):
    """Song, Kim, Lee, "SELFIE: Refurbishing Unclean Samples for Robust Deep Learning", ICML 2019.

    Algorithm 1 on each client of FedAvg, as in FedRN's comparison. A client notes what the network predicts for each of
    its samples in each of the last q epochs. After the warm-up a sample is refurbishable if the entropy of its
    predictions, F(x; q) = −Σ_j P(j) log P(j) / log C, is at most ε; its label is then the most frequent one, until it
    is refurbished again. A step is taken on the mean loss of the ⌈(1 − τ) B⌉ samples of a batch with the smallest
    losses and of all samples ever refurbished.

    Symbols: τ `noise_rate`; ε `threshold`; q `history`; γ `warmup`, in rounds; B `local.batch_size`.
    docs/methods/selfie.md explains the other settings.
    """

    privileges: ClassVar[tuple[str, ...]] = (
        "a noise rate (method.noise_rate), the same for all clients; told from the truth if it is set to the true one",
        "a second forward pass over every batch after the warm-up",
    )
    short_run: ClassVar[dict[str, Any]] = {"warmup": 2, "history": 2, "restarts": 1}
    limit_laws: ClassVar[dict[str, dict[str, Any]]] = {
        "an endless warm-up without restarts is FedAvg": {"warmup": 10**9, "restarts": 0}
    }

    noise_rate: Annotated[float, Field(ge=0, lt=1, description="τ: the share of each batch with too large a loss")]
    threshold: Annotated[float, Field(ge=0, le=1, description="ε: the largest uncertainty of a refurbishable sample")]
    history: Annotated[int, Field(ge=1, description="q: predictions remembered of each sample")]
    warmup: Annotated[int, Field(ge=0, description="γ: rounds of plain FedAvg before samples are selected"), Length()]
    restarts: Annotated[int, Field(ge=0, description="how often the network starts anew, with the labels it has made")]
    history_update: Literal["before_use", "after_use"]
    short_history: Literal["wait", "class_zero"]

    def needs(self, world: World) -> int:
        """For every start of the network its warm-up, and a round in which samples are refurbished."""
        return (self.warmup + 1) * (self.restarts + 1) * self.cohort_size

    # The server

    def init(self, fed: Federation, weights: Weights | None = None) -> State:
        if self.warmup >= (length := self.length(fed)):
            log.warning("method.warmup=%d covers all %d rounds of a run: nothing is refurbished", self.warmup, length)
        return super().init(fed, weights)

    def round(self, state: State, fed: Federation) -> State:
        run = min(fed.t // self.length(fed), self.restarts)
        since = fed.t - run * self.length(fed)
        if run > 0 and since == 0:
            state = replace(state, weights=self.net.fresh(fed.seed("net")))
        correcting = since >= self.warmup
        fed.record(stage="refurbishment" if correcting else "warm-up")
        updates = fed.map(self.train, self.select(state, fed), weights=state.weights, run=run, correcting=correcting)
        return replace(state, weights=self.aggregate(state, updates, fed))

    def length(self, fed: Federation) -> int:
        """Rounds from one start of the network to the next: the budget in equal parts."""
        return max(1, fed.budget // self.cohort_size // (self.restarts + 1))

    # The client

    def train(self, client: Client, weights: Weights, run: int, correcting: bool) -> Training:
        notes = self.notes(client, run)
        module = self.module(client, weights, notes, correcting)
        trained = yield Fit(module, client)
        return Update(
            trained.weights,
            memory={**trained.memory, **notes.memory()},
            trace={"clean": module.trained},
            labels=notes.labels if correcting else None,
        )

    def module(self, client: Client, weights: Weights, notes: Notes, correcting: bool) -> Refurbishing:
        net = self.net.load(weights)
        return Refurbishing(net, self.local, client.t, method=self, notes=notes, correcting=correcting)

    def notes(self, client: Client, run: int) -> Notes:
        """What the client knows of its samples; a restart forgets predictions and keeps labels."""
        notes = Notes.of(client, self.history, self.noise_rate)
        return notes if run == notes.run else notes.restarted(run)


@dataclass
class Notes:
    """What a client keeps of its n samples between rounds; a job works on copies."""

    given: Tensor  # the labels it began with, (n,)
    labels: Tensor  # those it trains on: refurbished where there is something better, (n,)
    refurbished: Tensor  # whether it was ever relabelled, be it with the given label, bool (n,)
    predictions: Tensor  # the last q of each, a ring, (n, q)
    counts: Tensor  # how many there have been in this run, (n,)
    noise_rate: Tensor  # τ of this run
    run: int

    @classmethod
    def of(cls, client: Client, history: int, noise_rate: float) -> Notes:
        """A client's notes from its memory, or those of a client that was never asked."""
        kept, n = client.memory, len(client)
        tables = {
            "given": client.data.y,
            "refurbished": torch.zeros(n, dtype=torch.bool),
            "predictions": torch.full((n, history), NOTHING, dtype=torch.int16),
            "counts": torch.zeros(n, dtype=torch.int64),
            "noise_rate": torch.tensor(noise_rate, dtype=torch.float64),
        }
        own = {name: torch.as_tensor(kept.get(name, table)).clone() for name, table in tables.items()}
        return cls(**own, labels=client.data.y.clone(), run=int(torch.as_tensor(kept.get("run", torch.tensor(0)))))

    def restarted(self, run: int) -> Notes:
        """For another run of the network: no predictions, and no more noise than there are labels left to correct."""
        share = self.refurbished.double().mean()
        return replace(
            self,
            predictions=torch.full_like(self.predictions, NOTHING),
            counts=torch.zeros_like(self.counts),
            noise_rate=torch.minimum(self.noise_rate, 1 - share),
            run=run,
        )

    def memory(self) -> Memory:
        """All of it but the labels, which are the client's own from then on."""
        kept = {name: value for name, value in vars(self).items() if name not in ("labels", "run")}
        return {**kept, "run": torch.tensor(self.run)}

    def note(self, index: Tensor, predicted: Tensor) -> None:
        """Write down this epoch's predictions of some samples over their oldest ones."""
        slots = self.counts[index] % self.predictions.shape[1]
        self.predictions[index, slots] = predicted.to(self.predictions.dtype)
        self.counts[index] += 1

    def refurbish(self, index: Tensor, num_classes: int, threshold: float, *, wait: bool) -> None:
        """Relabel those of some samples whose predictions are certain; `wait` for q of them."""
        predictions = self.predictions[index]
        certain = uncertainty(predictions, num_classes) <= threshold
        if wait:
            certain &= self.counts[index] >= predictions.shape[1]
        chosen = index[certain]
        self.labels[chosen] = frequencies(predictions[certain], num_classes).argmax(1)
        self.refurbished[chosen] = True


class Refurbishing(Classifier):
    """Notes predictions in every step, and after the warm-up chooses and relabels by them; for one client at a time."""

    def __init__(
        self, net: nn.Module, spec: LocalSpec, t: int, *, method: Selfie, notes: Notes, correcting: bool
    ) -> None:
        super().__init__(net, spec, t)
        self.method, self.notes, self.correcting = method, notes, correcting
        self.trained = torch.ones(len(notes.given), dtype=torch.bool)  # which samples took part in the last epoch

    def training_step(self, batch: Batch, index: int) -> Tensor:
        if not self.correcting:
            logits = self.net(batch.x)
            self.notes.note(batch.index, logits.detach().argmax(1).cpu())
            return F.cross_entropy(logits, batch.y)  # in a later run the labels that earlier ones have made
        keep, labels = self.selected(batch)
        return F.cross_entropy(self.net(batch.x[keep]), labels[keep])

    @torch.no_grad()
    def selected(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Which samples of a batch to train on, a mask, and the labels of all of them."""
        method, notes = self.method, self.notes
        logits = self.net(batch.x).cpu()
        losses = F.cross_entropy(logits, notes.given[batch.index], reduction="none")
        clean = torch.zeros(len(losses), dtype=torch.bool)
        clean[small_losses(losses, float(notes.noise_rate))] = True
        if method.history_update == "before_use":
            notes.note(batch.index, logits.argmax(1))
        notes.refurbish(batch.index, logits.shape[1], method.threshold, wait=method.short_history == "wait")
        if method.history_update == "after_use":
            notes.note(batch.index, logits.argmax(1))
        keep = clean | notes.refurbished[batch.index]
        self.trained[batch.index] = keep
        return keep.to(batch.x.device), notes.labels[batch.index].to(batch.x.device)


def uncertainty(history: Tensor, num_classes: int) -> Tensor:
    """F(x; q): the entropy of each row of predictions (n, q), as a share of the largest there is, log C; (n,)."""
    shares = frequencies(history, num_classes)
    return torch.special.entr(shares).sum(1) / max(math.log(num_classes), ROUNDING)


def frequencies(history: Tensor, num_classes: int) -> Tensor:
    """How often each class is predicted, (n, C), as shares of the q predictions in each row of (n, q)."""
    return F.one_hot(history.long(), num_classes).double().mean(1)


def small_losses(losses: Tensor, noise_rate: float) -> Tensor:
    """Positions of the ⌈(1 − τ) B⌉ smallest of B losses, smallest first."""
    return losses.argsort(stable=True)[: math.ceil((1 - noise_rate) * len(losses) - ROUNDING)]
