"""The vectorised cohort against the plain executor: close after several rounds, honest about what it cannot do."""

import logging
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn

from fnll.executors import Serial
from fnll.executors.cohort import Cohort, why_not
from fnll.executors.stacked import stacked_optimizer
from fnll.local import Classifier
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedla import FedLA
from fnll.methods.fedprox import FedProx, Proximal
from fnll.models import small_cnn
from fnll.net import Net
from fnll.testing import TinyWorld, canonical, play, subject_of, tiny_local


def closeness(left, right) -> float:
    pairs = [(left[name], right[name]) for name in left]
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def both(method, world, **options):
    plain = play(method, world, **options)
    fast = Cohort(world.scenario)
    return plain, play(method, world, executor=fast, **options), fast


@pytest.mark.parametrize("kind", ["noisy", "one_sample", "single_class", "empty"])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedla", "fednoro", "fednoro_official", "fedcorr"])
def test_close_to_serial_after_several_rounds(name, kind):
    world = TinyWorld(kind)
    method = subject_of(name).method(world, cohort=6)
    plain, fast, _ = both(method, world, rounds=4, cohort=6)
    assert [s.totals for s in plain] == [s.totals for s in fast]
    assert closeness(plain[-1].state.weights, fast[-1].state.weights) < 2e-3


@pytest.mark.parametrize("build", [None, partial(small_cnn, width=3, hidden=5)], ids=["plain", "pooled"])
def test_in_float64_only_rounding_is_left(monkeypatch, build):
    world = TinyWorld("one_sample")  # clients of 23, 1 and 12 samples: ragged, with partial batches
    monkeypatch.setattr("fnll.images.Transform.plain", lambda self, pixels: (pixels.double() / 255 - 0.5) / 0.125)
    net = world.shared()["net"]
    if build:
        net = Net.of(build, **{name: value for name, value in net.settings if name in ("num_classes", "input_shape")})
    method = FedProx(**{**world.shared(6), "net": Double(net)}, mu=0.3, form="half_squared")
    plain, fast, executor = both(method, world, rounds=5, cohort=6)
    assert plain[-1].state.weights["head.weight"].dtype == torch.float64
    assert closeness(plain[-1].state.weights, fast[-1].state.weights) < 1e-12
    assert not executor.said, "everything was vectorised"


class Double:
    """A recipe for a float64 network."""

    def __init__(self, net):
        self.net = net

    def fresh(self, seed):
        return {name: value.double() for name, value in self.net.fresh(seed).items()}

    def load(self, weights):
        module = self.net.load({name: value.float() for name, value in weights.items()}).double()
        module.load_state_dict(weights)
        return module


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_stacked_optimizers_follow_torchs_also_when_some_rest(kind, weight_decay):
    g = torch.Generator().manual_seed(0)
    start = torch.randn(3, 4, 2, generator=g, dtype=torch.float64)
    base = {"weight_decay": weight_decay, "fused": True}
    settings = {**base, "momentum": 0.9} if kind == "sgd" else {**base, "betas": (0.9, 0.99)}
    factory = partial(torch.optim.SGD if kind == "sgd" else torch.optim.Adam, **settings)
    stacked = [start.clone()]
    ours = stacked_optimizer(factory, stacked, lr=0.05)
    alone = [nn.Parameter(row.clone()) for row in start]
    theirs = [factory([p], lr=0.05) for p in alone]
    for active in ([0, 1, 2], [0, 2], [1], [0, 1, 2], [2]):
        gradient = torch.randn(3, 4, 2, generator=g, dtype=torch.float64)
        rows = None if len(active) == 3 else torch.tensor(active)
        ours.step([gradient[active]], rows)
        for k in active:
            alone[k].grad = gradient[k].clone()
            theirs[k].step()
    for k in range(3):
        assert torch.allclose(stacked[0][k], alone[k], atol=1e-12)


def test_what_cannot_be_vectorised_is_done_by_serial_with_one_line(caplog):
    caplog.set_level(logging.INFO)
    world = TinyWorld()
    method = subject_of("fedrn").method(world)
    plain = play(method, world)
    fast = play(method, world, executor=Cohort(world.scenario))
    assert canonical(plain) == canonical(fast)
    assert caplog.text.count("one client at a time") == 1


class Silent(Classifier):
    def loss(self, batch):
        return super().loss(batch) * 2


class Hooked(Classifier):
    def on_train_epoch_end(self):
        pass


class Peculiar(nn.Module):
    """A network with a part that its output does not use, a frozen one, or two that are one."""

    def __init__(self, kind, num_classes, input_shape):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.kind, self.head = kind, nn.Linear(16, num_classes)
        if kind == "frozen":
            self.first.requires_grad_(False)
        if kind == "tied":
            self.second.weight = self.first.weight

    def forward(self, x):
        x = self.first(x.flatten(1))
        return self.head(x if self.kind == "unused" else self.second(x))


@pytest.mark.parametrize("kind", ["unused", "frozen", "tied"])
def test_peculiar_networks_are_trained_as_serial_does(kind, caplog):
    caplog.set_level(logging.INFO)
    world = TinyWorld()
    method = FedAvg(**{**world.shared(6), "net": Net.of(partial(Peculiar, kind=kind), num_classes=4, input_shape=None)})
    plain, fast, executor = both(method, world, rounds=2, cohort=6)
    assert canonical(plain) == canonical(fast)
    assert executor.said == {"train"}
    assert caplog.text.count("one client at a time") == 1


def test_reasons():
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    spec = tiny_local()
    assert why_not(Classifier(net, spec)) is None
    assert why_not(Proximal(net, spec, 0, anchor={}, mu=0.1, form="norm")) is None
    assert "per_client" in why_not(Silent(net, spec))
    assert "between epochs" in why_not(Hooked(net, spec))
    assert "dropout" in why_not(Classifier(nn.Sequential(net, nn.Dropout()), spec))
    assert "BatchNorm" in why_not(Classifier(nn.Sequential(net, nn.BatchNorm1d(4)), spec))
    assert "clipped" in why_not(Classifier(net, replace(spec, clip_norm=1.0)))


def test_chunks_do_not_change_what_is_computed():
    world = TinyWorld()
    method = FedAvg(**world.shared(6))
    whole = play(method, world, rounds=2, cohort=6, executor=Cohort(world.scenario))
    parts = play(method, world, rounds=2, cohort=6, executor=Cohort(world.scenario, chunk=2))
    assert closeness(whole[-1].state.weights, parts[-1].state.weights) < 1e-5


class Recording(FedLA):
    """Notes what `finish` is given."""

    seen: ClassVar[list] = []

    def finish(self, module, client, weights):
        self.seen.append((module.counts.tolist(), client.class_counts().tolist()))
        return super().finish(module, client, weights)


def test_finish_sees_each_clients_own_module():
    world = TinyWorld()
    play(Recording(**world.shared(6)), world, rounds=1, cohort=6, executor=Cohort(world.scenario))
    assert len(Recording.seen) == 6
    assert all(counts == observed for counts, observed in Recording.seen)


class Halved(FedAvg):
    """Clients train on the first half of their samples."""

    def prepare(self, client, **message):
        return self.module(client, **message), client.subset(torch.arange(len(client) // 2 + 1))


def test_a_client_that_trains_on_a_part_of_its_data_counts_as_with_serial():
    world = TinyWorld("one_sample")
    plain, fast, executor = both(Halved(**world.shared(6)), world, rounds=2, cohort=6)
    assert closeness(plain[-1].state.weights, fast[-1].state.weights) < 1e-5
    assert not executor.said


def test_it_says_that_it_is_not_exact():
    assert (Cohort.exact, Cohort.numerics) == (False, "vectorised")
    assert Serial.exact is True
