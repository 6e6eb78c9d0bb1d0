"""Tiny methods that each use one thing that some method needs, and nothing else: where it breaks, they say what.

Two networks with manual optimisation (Co-teaching, DivideMix), labels updated every epoch and kept per sample
(JointOpt, SELFIE), two views of one image (FedLSR), several exchanges in a round (Power-of-Choice), per-client state
(FedDyn), a nested method (FedCorr's usual stage), and a pooled scenario with a kept optimiser (centralised recipes).
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import nn

from fnll.local import Classifier, Fit
from fnll.methods.fedavg import FedAvg
from fnll.scenario import assemble
from fnll.testing import Subject, TinyWorld, check_method, play, same
from fnll.types import State, Update
from fnll.weights import add, join, mean, part, scale, sub, zeros_like


class CoTaught(Classifier):
    """Two networks, each stepping on the samples that the other finds easy."""

    def __init__(self, net: nn.Module, spec, t: int, keep: float) -> None:
        super().__init__(net, spec, t)
        self.automatic_optimization, self.keep = False, keep

    def configure_optimizers(self) -> Any:
        return [self.spec.optimizer_for(self.net[name].parameters(), self.t) for name in "ab"]

    def training_step(self, batch, index):
        losses = {name: F.cross_entropy(self.net[name](batch.x), batch.y, reduction="none") for name in "ab"}
        count = max(1, int(self.keep * len(batch.y)))
        easy = {name: losses[name].detach().argsort()[:count] for name in "ab"}
        for name, other, optimizer in zip("ab", "ba", self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(losses[name][easy[other]].mean())
            optimizer.step()


@dataclass(frozen=True, kw_only=True)
class TwoNetworks(FedAvg):
    keep: float

    def init(self, fed, weights=None):
        return State(join(a=self.net.fresh(fed.seed("net", "a")), b=self.net.fresh(fed.seed("net", "b"))))

    def module(self, client, weights):
        pair = nn.ModuleDict({name: self.net.load(part(weights, name)) for name in "ab"})
        return CoTaught(pair, self.local, client.t, self.keep)

    def model(self, state):
        return self.net.load(part(state.weights, "a"))


class SoftLabels(Classifier):
    """Trains on soft labels and replaces them by its own predictions after every epoch."""

    def __init__(self, net, spec, t, soft):
        super().__init__(net, spec, t)
        self.soft, self.seen = soft, soft.clone()

    def loss(self, batch):
        logits = self.net(batch.x)
        self.seen[batch.index] = logits.detach().softmax(1)
        return F.cross_entropy(logits, self.soft[batch.index])

    def on_train_epoch_end(self):
        self.soft = 0.5 * self.soft + 0.5 * self.seen


@dataclass(frozen=True, kw_only=True)
class EpochLabels(FedAvg):
    def module(self, client, weights):
        kept = client.memory.get("soft", F.one_hot(client.data.y, client.data.num_classes).float())
        return SoftLabels(self.net.load(weights), self.local, client.t, kept.clone())

    def train(self, client, weights):
        module = self.module(client, weights)
        trained = yield Fit(module, client)
        return Update(trained.weights, memory={"soft": module.soft}, labels=module.soft.argmax(1))


class TwoViews(Classifier):
    def loss(self, batch):
        first, second = (self.net(view) for view in batch.views)
        return F.cross_entropy(first, batch.y) + (first.softmax(1) - second.softmax(1)).square().mean()


@dataclass(frozen=True, kw_only=True)
class Views(FedAvg):
    def train(self, client, weights):
        trained = yield Fit(TwoViews(self.net.load(weights), self.local, client.t), client, views=2)
        return Update(trained.weights)


@dataclass(frozen=True, kw_only=True)
class AsksFirst(FedAvg):
    """Power-of-Choice: candidates tell their loss, the hardest are trained."""

    candidates: int

    def select(self, state, fed):
        asked = fed.sample(self.candidates, p=fed.sizes, purpose="candidates")
        probes = fed.map(self.probe, asked, weights=state.weights)
        hardest = sorted(probes, key=lambda u: -u.report["loss"])[: self.cohort_size]
        return sorted(u.client for u in hardest)

    @torch.no_grad()
    def probe(self, client, weights):
        net = self.net.load(weights).eval()
        losses = [F.cross_entropy(net(b.x), b.y, reduction="sum") for b in client.scan()]
        return Update(report={"loss": float(sum(losses)) / len(client)})


@dataclass(frozen=True)
class Drift(State):
    h: dict


@dataclass(frozen=True, kw_only=True)
class Controlled(FedAvg):
    """FedDyn's shape: every client keeps a correction, the server one more."""

    alpha: float

    def init(self, fed, weights=None):
        start = super().init(fed, weights).weights
        return Drift(start, zeros_like(start))

    def round(self, state, fed):
        updates = fed.map(self.train, self.select(state, fed), weights=state.weights)
        models = [u.weights for u in updates]
        drift = scale(sub(mean(models), state.weights), len(models) / fed.num_clients)
        h = sub(state.h, scale(drift, self.alpha))
        return Drift(sub(mean(models), scale(h, self.alpha)), h)

    def train(self, client, weights):
        kept = client.memory.get("g", zeros_like(weights))
        trained = yield Fit(self.module(client, weights=weights), client)
        corrected = sub(trained.weights, scale(kept, self.alpha))
        return Update(corrected, memory={"g": add(kept, sub(corrected, weights))})


@dataclass(frozen=True)
class Staged(State):
    inner: State | None


@dataclass(frozen=True, kw_only=True)
class TwoStages(FedAvg):
    """Plain rounds, then another method takes over."""

    switch: int
    usual: Any

    def needs(self, world):
        return (self.switch + 1) * self.cohort_size

    def init(self, fed, weights=None):
        return Staged(super().init(fed, weights).weights, None)

    def round(self, state, fed):
        if fed.t < self.switch:
            return super().round(state, fed)
        inner_fed = fed.sub("usual", start=self.switch)
        inner = state.inner or self.usual.init(inner_fed, state.weights)
        inner = self.usual.round(inner, inner_fed)
        return Staged(inner.weights, inner)


NESTED = {"_target_": f"{__name__}.Controlled", "_partial_": True, "alpha": 0.1}
WITNESSES = {
    TwoNetworks: {"keep": 0.8},
    EpochLabels: {},
    Views: {},
    AsksFirst: {"candidates": 5},
    Controlled: {"alpha": 0.1},
    TwoStages: {"switch": 3, "usual": NESTED},
}


def subject(cls: type) -> Subject:
    node = {"_target_": f"{__name__}.{cls.__name__}", "_partial_": True, **WITNESSES[cls]}
    return Subject(cls.__name__, OmegaConf.create(node))


@pytest.mark.slow  # in `make test` their users pass the same checks: coteaching, jointopt, fedlsr, poc, feddyn, fedcorr
@pytest.mark.parametrize("cls", WITNESSES)
def test_witnesses_pass_every_check(cls):
    failed = [f"{r.check.name}: {r.detail}" for r in check_method(subject(cls)) if r.outcome == "failed"]
    assert not failed


def test_the_inner_method_starts_from_the_outer_ones_weights_and_keeps_its_own_count():
    world = TinyWorld()
    outer = subject(TwoStages).method(world)
    snapshots = play(outer, world)
    assert snapshots[2].state.inner is None
    assert isinstance(snapshots[3].state.inner, Drift)
    keys = {key for kept in snapshots[-1].clients.values() for key in kept.memory}
    assert keys == {"usual/g"}


def test_corrected_labels_reach_the_next_job_and_the_snapshot():
    world = TinyWorld()
    last = play(subject(EpochLabels).method(world), world, rounds=20)[-1]
    assert any(
        not torch.equal(kept.labels, world.scenario.labels[world.scenario.shards[k]])
        for k, kept in last.clients.items()
    )


def test_a_centralised_recipe_is_one_pooled_client_with_a_kept_optimizer():
    world = TinyWorld()
    pooled, truth = assemble(
        world.dataset, world.scenario.shards, world.scenario.labels, world.truth.nominal, pooled=True
    )
    assert pooled.sizes == (sum(world.scenario.sizes),)
    assert pooled.origin == world.scenario.fingerprint != pooled.fingerprint
    assert truth.realised[0] == pytest.approx(float((world.scenario.labels != world.truth.labels).double().mean()))
    central = replace(world)
    object.__setattr__(central, "scenario", pooled)
    method = FedAvg(**world.shared(cohort=1, keep_optimizer=True))
    snapshots = play(method, central, rounds=3, cohort=1)
    assert set(snapshots[-1].clients[0].memory) == {"optimizer"}
    forgetful = play(FedAvg(**world.shared(cohort=1)), central, rounds=3, cohort=1)
    assert same(snapshots[0].state, forgetful[0].state)
    assert not same(snapshots[-1].state, forgetful[-1].state)
