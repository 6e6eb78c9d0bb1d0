"""What the vectorised executor remembers of losses: good for whoever comes next, and nobody is kept alive by it."""

import gc
import random
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fnll.executors import habits, program, together
from fnll.executors.habits import Habits
from fnll.executors.lanes import itself
from fnll.executors.program import Programs
from fnll.executors.vectorised import Stacker, Vectorised
from fnll.federation import federate
from fnll.local import Classifier, Fit
from fnll.methods.dividemix_local import Division
from fnll.methods.fedavg import FedAvg
from fnll.testing import TinyWorld, play
from fnll.types import Update


def far(left, right):
    """How far the clients' weights of two runs are apart at most, where both are finite."""
    pairs = [(left[-1].state.weights[name], right[-1].state.weights[name]) for name in left[-1].state.weights]
    return max(float((a - b).abs().max()) for a, b in pairs)


class CountsPadding(FedAvg):
    """A mean of its own counts whatever is in the batch; client 2, the first with a short batch, diverges before it."""

    def round(self, state, fed):
        updates = fed.map(self.train, [0, 2, 3, 4, 5], weights=state.weights)
        sane = [update for update in updates if update.client != 2]
        return replace(state, weights=self.aggregate(state, sane, fed))

    def module(self, client, weights):
        lr = 1e38 if client.id == 2 else self.local.lr
        return Classifier(self.net.load(weights), replace(self.local, lr=lr), client.t, self.loss)

    def loss(self, net, batch, **message):
        return -(F.log_softmax(net(batch.x), dim=1) * F.one_hot(batch.y.clamp(min=0), 4)).sum(1).mean()


def test_a_diverging_client_does_not_vouch_for_the_padding_of_others():
    world = TinyWorld("one_sample")
    method, executor = CountsPadding(**world.shared(6)), Vectorised(world.scenario)
    plain, fast = play(method, world, rounds=1, cohort=5), play(method, world, rounds=1, cohort=5, executor=executor)
    assert far(plain, fast) < 1e-5
    assert not any(kind.unpadded for kind in executor.stacker.habits._kinds.values()), "it proved nothing"


class Drifting(FedAvg):
    """Reads the round behind the executor's back: every traced step of it is wrong in the next round."""

    scale = 1.0

    def round(self, state, fed):
        type(self).scale = 1.0 + fed.t % 2
        return super().round(state, fed)

    def loss(self, net, batch, **message):
        return super().loss(net, batch) * self.scale


def test_a_refused_step_is_not_traced_again_once_others_have_passed(monkeypatch):
    monkeypatch.setattr(program, "KINDS", 4)
    world, rounds = TinyWorld(), 16
    method, executor = Drifting(**world.shared(6)), Vectorised(world.scenario)
    plain = play(method, world, rounds=rounds, cohort=6)
    programs = executor.stacker.habits.programs = Programs(2)
    for snapshot, _ in federate(method, executor, world.public, budget=6 * rounds, seed=0):
        for other in range(program.KINDS if snapshot.t == program.OFTEN else 0):
            programs.of(("another", other), lambda: (), [])
    assert max(float((snapshot.state.weights[n] - w).abs().max()) for n, w in plain[-1].state.weights.items()) < 1e-5


def test_a_step_that_is_traced_late_is_compared_ten_times_from_then_on():
    world, rounds = TinyWorld(), 32
    method = Drifting(**world.shared(6, batch_size=12))  # so few steps that no list is worth its while in ten rounds
    plain = play(method, world, rounds=rounds, cohort=6)
    assert far(plain, play(method, world, rounds=rounds, cohort=6, executor=Vectorised(world.scenario))) < 1e-5


def test_a_forgotten_list_is_compared_anew(monkeypatch):
    monkeypatch.setattr(program, "KINDS", 1)
    monkeypatch.setattr(program, "_traced", lambda step, arguments: step)
    programs = Programs(worth=0)
    assert programs.of("kind", lambda: (), [])
    programs.trusted.add("kind")
    programs.of("another", lambda: (), [])
    assert "kind" not in programs.trusted


class ReadsItsRate(Classifier):
    def loss(self, batch):
        return super().loss(batch) * (1 + self.spec.lr)


class Rated(FedAvg):
    def module(self, client, weights):
        spec = replace(self.local, lr=0.1 if client.id < 3 else 0.3)
        return ReadsItsRate(self.net.load(weights), spec, client.t)


def test_a_loss_that_reads_how_a_client_trains_is_met_alone():
    world = TinyWorld()
    method, executor = Rated(**world.shared(6)), Vectorised(world.scenario)
    assert far(play(method, world, cohort=6), play(method, world, cohort=6, executor=executor)) == 0
    assert list(executor.stacker.alone) == [
        ("train", "its loss reads the setting lr, which may differ between clients")
    ]


def nesterov(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def amsgrad(module):
    return torch.optim.Adam(module.parameters(), lr=0.01, amsgrad=True)


def remembering(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for parameter in module.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
    return optimizer


def halving(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def halve(optimizer, args, kwargs):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad *= 0.5

    optimizer.register_step_pre_hook(halve)
    return optimizer


@pytest.mark.parametrize("configured", [nesterov, amsgrad, remembering, halving])
def test_optimisers_that_do_more_than_the_stacked_form_are_left_alone(configured):
    class Own(Classifier):
        def configure_optimizers(self):
            return configured(self)

    class Optimised(FedAvg):
        def module(self, client, weights):
            return Own(self.net.load(weights), self.local, client.t)

    world = TinyWorld()
    method, executor = Optimised(**world.shared(6)), Vectorised(world.scenario)
    assert far(play(method, world, cohort=6), play(method, world, cohort=6, executor=executor)) == 0
    assert executor.said == {"train"}


def test_gradients_that_somebody_changes_on_their_way_are_left_alone(monkeypatch):
    def module(self, client, weights):
        made = Classifier(self.net.load(weights), self.local, client.t)
        for parameter in made.parameters():
            parameter.register_hook(lambda gradient: 0.5 * gradient)
        return made

    monkeypatch.setattr(FedAvg, "module", module)
    world = TinyWorld()
    method, executor = FedAvg(**world.shared(6)), Vectorised(world.scenario)
    assert far(play(method, world, cohort=6), play(method, world, cohort=6, executor=executor)) == 0
    assert list(executor.stacker.alone) == [("train", "its parameters have hooks")]


class Drawing(Classifier):
    """Draws from the global generators, which a job has for itself."""

    where = "draw"

    def draw(self, batch, client):
        if self.where == "draw":
            batch = replace(batch, views=(batch.x + float(np.random.normal()) * torch.rand(()),))
        return batch

    def loss(self, batch):
        return super().loss(batch) * (1 + (random.random() if self.where == "loss" else 0))


@pytest.mark.parametrize("where", ["draw", "loss"])
def test_what_draws_from_the_global_generators_is_met_alone(where, monkeypatch):
    monkeypatch.setattr(Drawing, "where", where)
    monkeypatch.setattr(FedAvg, "module", lambda self, client, weights: Drawing(self.net.load(weights), self.local))
    world = TinyWorld()
    method, executor = FedAvg(**world.shared(6)), Vectorised(world.scenario)
    assert far(play(method, world, cohort=6), play(method, world, cohort=6, executor=executor)) == 0
    assert executor.said == {"train"}


class Deciding(Classifier):
    def loss(self, batch):
        return super().loss(batch) * (2 if self.weight == 0 else 1)


class LastOneDiffers(FedAvg):
    def module(self, client, weights):
        made = Deciding(self.net.load(weights), self.local, client.t)
        made.weight = float(client.id == 5)
        return made


def test_blocks_before_the_one_that_fails_are_not_trained_twice(monkeypatch):
    monkeypatch.setattr(together, "block_size", lambda numbers: 3)
    world = TinyWorld()
    method, executor = LastOneDiffers(**world.shared(6)), Vectorised(world.scenario)
    assert far(play(method, world, cohort=6), play(method, world, cohort=6, executor=executor)) < 1e-5


def test_numbers_that_are_drawn_are_no_kinds_of_steps():
    class Weighing(Classifier):
        def draw(self, batch, client):
            return replace(batch, extras={"weight": batch.step / 1000})

        def loss(self, batch):
            return super().loss(batch) * (1 + batch.extras["weight"])

    class Weighed(FedAvg):
        def module(self, client, weights):
            return Weighing(self.net.load(weights), self.local, client.t)

    world = TinyWorld()
    method, executor = Weighed(**world.shared(6)), Vectorised(world.scenario)
    programs = executor.stacker.habits.programs = Programs(3)
    assert far(play(method, world, cohort=6), play(method, world, cohort=6, executor=executor)) < 1e-5
    assert 0 < len(programs._known) <= 4


class Taught(FedAvg):
    """The server makes a loss around the network of the round, and sends it."""

    teachers: list[weakref.ref[nn.Module]]

    def round(self, state, fed):
        teacher = self.net.load(state.weights).eval()
        self.teachers.append(weakref.ref(teacher))

        def objective(net, batch):
            with torch.no_grad():
                wanted = teacher(batch.x).softmax(1)
            return F.cross_entropy(net(batch.x), batch.y) + (net(batch.x).softmax(1) - wanted).square().sum(1).mean()

        updates = fed.map(self.job, list(range(6)), weights=state.weights, objective=objective)
        return replace(state, weights=self.aggregate(state, updates, fed))

    def job(self, client, weights, objective):
        trained = yield Fit(Classifier(self.net.load(weights), self.local, client.t, objective), client)
        return Update(trained.weights)


def test_losses_are_not_kept_by_what_was_learned_of_them(monkeypatch):
    monkeypatch.setattr(habits, "REMEMBERED", 3)
    monkeypatch.setattr(Taught, "teachers", [], raising=False)
    world, executor = TinyWorld(), None
    method, executor = Taught(**world.shared(6)), Vectorised(world.scenario)
    fast = play(method, world, rounds=6, cohort=6, executor=executor)
    gc.collect()
    assert not any(teacher() for teacher in Taught.teachers)
    assert len(executor.stacker.habits) == 3
    assert far(play(method, world, rounds=6, cohort=6), fast) < 1e-5
    assert not executor.said


class Closing(FedAvg):
    """Each client makes a loss of its own."""

    def module(self, client, weights):
        return Classifier(self.net.load(weights), self.local, client.t, lambda net, b: F.cross_entropy(net(b.x), b.y))


def test_clients_of_which_no_two_are_alike_are_spoken_of():
    world = TinyWorld()
    executor = Vectorised(world.scenario, stacker=Stacker())
    play(Closing(**world.shared(6)), world, cohort=6, executor=executor)
    assert list(executor.stacker.alone) == [("train", "no two of its trainings are alike")]


@pytest.mark.parametrize("make", [lambda: torch.ones(2), lambda: nn.Linear(1, 1), lambda: lambda: 1])
def test_an_object_in_the_place_of_one_that_is_gone_is_another(make):
    thing = make()
    key, same = itself(thing), itself(thing)
    assert key == same
    assert hash(key) == hash(same)
    alive = weakref.ref(thing)
    del thing
    gc.collect()
    assert alive() is None, "the key does not keep it"
    other = make()
    fresh = itself(other)
    fresh._named = key._named  # as if it lay at the same address
    assert fresh != key
    assert key != same


def test_what_says_itself_what_it_equals_is_believed():
    """DivideMix's divisions differ from client to client, and no loss looks at them."""
    one, other = (Division(torch.rand(3), torch.arange(2)) for _ in range(2))
    assert itself(one) == itself(other)


def test_kinds_that_were_not_met_lately_are_forgotten(monkeypatch):
    monkeypatch.setattr(habits, "REMEMBERED", 2)
    found = Habits()
    first = found.of("a")
    found.of("b")
    assert found.of("a") is first
    found.of("c")
    assert found.of("a") is first
    assert found.of("b").number == 3, "a new one"
