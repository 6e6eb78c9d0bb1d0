"""What cannot be stacked is done as `Serial` does it, is said once, and is nobody else's business."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from fnll.executors import Serial, predictions
from fnll.executors.together import Block
from fnll.executors.vectorised import Vectorised
from fnll.federation import federate
from fnll.local import Classifier, Fit, Predict
from fnll.methods.fedavg import FedAvg
from fnll.net import Net
from fnll.testing import TinyWorld, canonical, play
from fnll.types import Update

WORLD = TinyWorld()


class Looking(FedAvg):
    """Looks at its samples, by one random view each, before it trains on them."""

    def train(self, client, weights):
        logits = yield Predict(self.net.load(weights), client, augment=True)
        trained = yield Fit(self.module(client, weights=weights), client)
        return Update(trained.weights, trace={"clean": logits.argmax(1) == 0})


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.second(self.first(x.flatten(1)).relu()).relu())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.cell(x[:, 0])[0][:, -1])


class Foreign(nn.Module):
    """Leaves torch on its way."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.from_numpy(x.numpy() * 1.0).flatten(1))


def built(kind):
    def build(*, num_classes, input_shape):
        return kind()

    return Net.of(build, num_classes=4, input_shape=(1, 4, 4))


def method(kind, net=None):
    return kind(**{**WORLD.shared(6), **({"net": net} if net else {})})


@pytest.mark.parametrize("network", [Tied, Recurrent, Foreign])
@pytest.mark.parametrize("kind", [FedAvg, Looking])
def test_networks_that_vmap_cannot_do_have_the_numbers_of_serial(network, kind):
    fast = Vectorised(WORLD.scenario)
    plain = play(method(kind, built(network)), WORLD, rounds=3, cohort=6)
    assert canonical(play(method(kind, built(network)), WORLD, executor=fast, rounds=3, cohort=6)) == canonical(plain)
    assert fast.said == {"train"}
    assert len(fast.stacker.alone) <= 2, "said once for each kind of request"


def test_an_augmentation_need_not_be_hashable():
    @dataclass
    class Flip:
        share: float = 1.0

        def __call__(self, pixels, generator):
            return pixels.flip(3)

    scenario = replace(WORLD.scenario, transform=replace(WORLD.scenario.transform, augmentations=(Flip(),)))
    with pytest.raises(TypeError, match="unhashable"):
        hash(scenario.transform)
    plain, fast = (
        [
            snapshot.totals
            for snapshot, _ in federate(method(Looking), executor(scenario), WORLD.public, budget=12, seed=0)
        ]
        for executor in (Serial, Vectorised)
    )
    assert plain == fast


def test_one_network_that_cannot_be_stacked_leaves_others_stacked(monkeypatch):
    counted, real = [], Block.__init__

    def count(self, lanes, *args, **kwargs):
        counted.append(len(lanes))
        real(self, lanes, *args, **kwargs)

    odd, plain = Vectorised(WORLD.scenario), Vectorised(WORLD.scenario)
    plain.stacker = odd.stacker  # as in a process that drives several runs
    play(method(FedAvg, built(Foreign)), WORLD, executor=odd, rounds=2, cohort=6)
    assert odd.said
    monkeypatch.setattr(Block, "__init__", count)
    play(method(FedAvg), WORLD, executor=plain, rounds=2, cohort=6)
    assert counted == [6, 6]


def test_what_is_said_together_is_compared_at_first_and_then_now_and_then(monkeypatch):
    counted, real = [], predictions._check

    def check(*args):
        counted.append(args)
        real(*args)

    monkeypatch.setattr(predictions, "_check", check)
    play(method(Looking), WORLD, executor=Vectorised(WORLD.scenario), rounds=30, cohort=6)
    assert len(counted) == 12  # in ten rounds, in the twentieth and in the thirtieth


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        raise LookupError("no such thing")


@pytest.mark.parametrize("kind", [FedAvg, Looking])
def test_a_mistake_of_the_network_itself_is_reported_with_its_client(kind):
    with pytest.raises(LookupError, match="no such thing") as caught:
        play(method(kind, built(Broken)), WORLD, executor=Vectorised(WORLD.scenario), rounds=1, cohort=6)
    assert any(note.startswith("client ") for note in caught.value.__notes__)


class Misconfigured(FedAvg):
    def module(self, client, weights):
        return NoOptimizer(self.net.load(weights), self.local, client.t)


class NoOptimizer(Classifier):
    def configure_optimizers(self):
        raise KeyError("no such optimiser")


def test_an_optimiser_that_cannot_be_made_fails_with_the_client_that_asked_for_it():
    with pytest.raises(KeyError, match="no such optimiser") as failed:
        play(Misconfigured(**WORLD.shared(6)), WORLD, cohort=6, executor=Vectorised(WORLD.scenario))
    assert failed.value.__notes__ == ["client 0, round 0, job train"]
