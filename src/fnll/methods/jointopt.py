"""JointOpt: clients train on soft labels and replace these by what their network has predicted lately."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fnll.errors import require
from fnll.federation import Federation, World
from fnll.lengths import Length
from fnll.local import Classifier, Fit, LocalSpec, Training
from fnll.methods.fedavg import FedAvg
from fnll.types import Batch, Client, State, Update
from fnll.weights import Weights


@dataclass(frozen=True)
class JointOptState(State):
    """The weights, and when step 2 began: the round, or None before."""

    retraining: int | None = None


@dataclass(frozen=True, kw_only=True)
class JointOpt(FedAvg):
    """Tanaka et al., "Joint Optimization Framework for Learning with Noisy Labels", CVPR 2018, on FedAvg's clients.

    Clients minimise L_c + α L_p + β L_e (equation 4): cross-entropy with soft labels, the distance of the batch's mean
    prediction from a prior, and the entropy of predictions. After the warm-up a sample's label becomes, at the end of
    every local epoch, the mean of what the network predicted for it in the last `window` epochs (section 3.3). Step 2
    (section 4.3) trains a new network on the final labels.

    Symbols: α `alpha`; β `beta`; p `prior`; the first epoch of label updates `warmup`, in rounds. The papers that
    federate it say little; docs/methods/jointopt.md says whose form each setting is.
    """

    privileges: ClassVar[tuple[str, ...]] = ()
    short_run: ClassVar[dict[str, Any]] = {"warmup": 1, "retrain": 3}
    limit_laws: ClassVar[dict[str, dict[str, Any]]] = {
        "an endless warm-up with cross-entropy is FedAvg": {
            "warmup": 10**9, "warmup_loss": "cross_entropy", "warmup_epochs": None, "retrain": 0
        }
    }  # fmt: skip

    alpha: Annotated[float, Field(ge=0, description="α pulls the mean prediction towards the prior")]
    beta: Annotated[float, Field(ge=0, description="β weighs the entropy of predictions")]
    prior: Literal["uniform", "client"]
    warmup: Annotated[int, Field(ge=0, description="rounds in which labels stay as given"), Length()]
    warmup_loss: Literal["joint", "cross_entropy"]
    warmup_epochs: Annotated[int, Field(ge=1, description="local epochs of the warm-up; null: as later")] | None
    window: Annotated[int, Field(ge=1, description="epochs whose predictions are averaged into a label")]
    unfilled: Literal["skip", "zero"]
    update_from: Annotated[int, Field(ge=1, description="the first local epoch of a round that updates labels")]
    keep_labels: bool
    labelling: Literal["soft", "hard"]
    retrain: Annotated[int, Field(ge=0, description="rounds of step 2 at the end; 0 leaves it out"), Length()]
    retrain_lr: Annotated[float, Field(gt=0, description="the rate step 2 begins with; null: local.lr")] | None

    def needs(self, world: World) -> int:
        """The warm-up, a round in which labels change, and step 2."""
        return (self.warmup + 1 + self.retrain) * self.cohort_size

    # The server

    def init(self, fed: Federation, weights: Weights | None = None) -> JointOptState:
        rounds = (fed.budget - fed.spent) // self.cohort_size
        require(
            self.retrain == 0 or self.retrain < rounds,
            f"method.retrain={self.retrain} leaves nothing of the {rounds} rounds to step 1; lower it or raise rounds",
        )
        return JointOptState(super().init(fed, weights).weights)

    def round(self, state: JointOptState, fed: Federation) -> JointOptState:
        if fed.budget - fed.spent > self.retrain * self.cohort_size:
            fed.record(stage="warm-up" if fed.t < self.warmup else "labels")
            message: dict[str, float] = {}
        else:
            fed.record(stage="retraining")
            if state.retraining is None:
                state = replace(state, weights=self.net.fresh(fed.seed("retrain")), retraining=fed.t)
            message = {"lr": self.rate(fed.t - (state.retraining or 0))}
        updates = fed.map(self.train, self.select(state, fed), weights=state.weights, **message)
        return replace(state, weights=self.aggregate(state, updates, fed))

    def rate(self, t: int) -> float:
        """Step 2's learning rate in its round `t`: a tenth after a third of the rounds, a hundredth after two."""
        lr = self.local.lr if self.retrain_lr is None else self.retrain_lr
        return lr * 0.1 ** sum(t >= self.retrain * thirds // 3 for thirds in (1, 2))

    # The clients

    def train(self, client: Client, weights: Weights, lr: float | None = None) -> Training:
        """Step 1, or with the rate `lr` step 2."""
        net = self.net.load(weights)
        if lr is not None:
            targets = _soft(client.memory.get("targets"), client)
            module = Classifier(net, replace(self.local, lr=lr), client.t, soft_cross_entropy, targets=targets)
            trained = yield Fit(module, client, ("retrain",))
            return Update(trained.weights, memory=trained.memory)
        spec = self.local
        if client.t < self.warmup:
            spec = replace(spec, epochs=self.warmup_epochs or spec.epochs)
            if self.warmup_loss == "cross_entropy":
                trained = yield Fit(Classifier(net, spec, client.t), client)
                return Update(trained.weights, memory=trained.memory)
        return (yield from self.step(client, net, spec))

    def step(self, client: Client, net: nn.Module, spec: LocalSpec) -> Training:
        """Train by equation 4 and update the labels; what a client remembers is never changed in place."""
        given = client.memory.get("given", client.data.y)
        assert isinstance(given, Tensor)
        kept = client.memory if self.keep_labels else {}
        counts = torch.bincount(given, minlength=client.data.num_classes).double()
        module = Relabelling(
            net,
            spec,
            client.t,
            method=self,
            targets=_soft(kept.get("targets"), client.with_labels(given)),
            history=_history(kept.get("history"), self.window, client),
            filled=int(torch.as_tensor(kept.get("filled", 0))),
            prior=None if self.prior == "uniform" else counts / len(client),
        )
        trained = yield Fit(module, client)
        memory = {"history": module.history, "filled": torch.tensor(module.filled), **trained.memory}
        if not module.updates:
            return Update(trained.weights, memory=memory)
        return Update(
            trained.weights,
            memory={**memory, "targets": module.targets, "given": given},
            labels=module.targets.argmax(1),
        )


class Relabelling(Classifier):
    """Equation 4, with a record of the predictions of every epoch, from which new labels are made at its end.

    The predictions are those that training makes anyway, of augmented images and by a network that changes from batch
    to batch, as in both released codes. Since they are written down, clients are trained one at a time.
    """

    def __init__(
        self,
        net: nn.Module,
        spec: LocalSpec,
        t: int,
        *,
        method: JointOpt,
        targets: Tensor,
        history: Tensor,
        filled: int,
        prior: Tensor | None,
    ) -> None:
        super().__init__(net, spec, t)
        self.method, self.prior = method, prior
        self.targets = targets  # (n, C): what is trained on
        self.history = history  # (window, n, C): predictions, one row for an epoch, the oldest overwritten
        self.filled = filled  # epochs recorded so far
        self.seen = targets.clone()  # predictions of the running epoch
        self.epoch = 0
        self.updates = 0

    def loss(self, batch: Batch) -> Tensor:
        logits = self.net(batch.x)
        self.seen[batch.index] = logits.detach().float().softmax(dim=1).cpu()
        targets = self.targets[batch.index].to(logits.device)
        return joint_loss(logits, targets, self.method.alpha, self.method.beta, self.prior)

    def on_train_epoch_end(self) -> None:
        method = self.method
        self.epoch += 1
        self.history[self.filled % method.window] = self.seen
        self.filled += 1
        if self.t < method.warmup or self.epoch < method.update_from:
            return
        self.updates += 1
        self.targets = averaged(self.history, self.filled, method.unfilled)
        if method.labelling == "hard":
            self.targets = F.one_hot(self.targets.argmax(1), self.targets.shape[1]).to(self.targets)


def joint_loss(logits: Tensor, targets: Tensor, alpha: float, beta: float, prior: Tensor | None = None) -> Tensor:
    """L_c + α L_p + β L_e of logits (B, C) and soft labels (B, C); `prior` (C,) is uniform unless given.

    L_p is −Σ p_c log s̄_c with the batch's mean prediction s̄: KL(p‖s̄) without p's own entropy, which is a constant.
    log s̄ is computed from log-probabilities and stays finite where a class has probability 0 in all of a batch.
    """
    log_probs = F.log_softmax(logits, dim=1)
    probs = log_probs.exp()
    log_mean = torch.logsumexp(log_probs, dim=0) - math.log(len(logits))
    p = torch.full_like(log_mean, 1 / logits.shape[1]) if prior is None else prior.to(log_mean)
    fit = -(targets * log_probs).sum(dim=1).mean()
    balance = -(p * log_mean).sum()
    entropy = -(probs * log_probs).sum(dim=1).mean()
    return fit + alpha * balance + beta * entropy


def soft_cross_entropy(net: nn.Module, batch: Batch, targets: Tensor) -> Tensor:
    """Step 2: cross-entropy with all the client's soft labels (n, C), and no penalties."""
    log_probs = F.log_softmax(net(batch.x), dim=1)
    return -(targets[batch.index.to(targets.device)] * log_probs).sum(dim=1).mean()


def averaged(history: Tensor, filled: int, unfilled: str) -> Tensor:
    """New labels (n, C) from predictions (window, n, C), of which the first `filled` rows hold something.

    `zero` divides by the whole window from the start, as FedRN's released code does: young labels sum to less than 1.
    """
    return history.mean(dim=0) if unfilled == "zero" else history[: min(filled, len(history))].mean(dim=0)


def _soft(kept: Tensor | Weights | None, client: Client) -> Tensor:
    """A client's soft labels: those it has kept, or its labels as one-hot vectors."""
    if kept is None:
        return F.one_hot(client.data.y, client.data.num_classes).float()
    assert isinstance(kept, Tensor)
    return kept


def _history(kept: Tensor | Weights | None, window: int, client: Client) -> Tensor:
    if kept is None:
        return torch.zeros(window, len(client), client.data.num_classes)
    assert isinstance(kept, Tensor)
    return kept.clone()
