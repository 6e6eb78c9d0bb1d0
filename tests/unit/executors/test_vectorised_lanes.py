"""What makes lanes share a step: padding, numbers of their own, stacked layers, traced steps; each against serial."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fnll.executors import layout, together
from fnll.executors.convolution import convolve
from fnll.executors.lanes import itself
from fnll.executors.layers import stacked_layers
from fnll.executors.program import Programs
from fnll.executors.rows import PADDING, Row, padded
from fnll.executors.together import Block, _alike, block_size
from fnll.executors.vectorised import Vectorised
from fnll.local import Classifier
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedprox import FedProx
from fnll.testing import TinyWorld, play, subject_of
from fnll.weights import all_finite

SLOW = ["fedprox", "fedla", "fednoro", "fedcorr", "fedrn", "gce", "sce", "feddyn", "arfl"]  # tracing takes seconds
METHODS = ["fedavg", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def closeness(left, right) -> float:
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)


def compared(method, world, worth=10**9, rounds=3):
    plain = play(method, world, rounds=rounds, cohort=6)
    executor = Vectorised(world.scenario)
    executor.stacker.habits.programs = Programs(worth)
    fast = play(method, world, rounds=rounds, cohort=6, executor=executor)
    assert all_finite(fast[-1].state.weights)
    return closeness(plain[-1].state.weights, fast[-1].state.weights), executor


def known(executor):
    """What the executor has learned of each kind of request."""
    return list(executor.stacker.habits._kinds.values())


@pytest.fixture
def steps(monkeypatch):
    """The number of lanes of every step that was taken."""
    taken, real = [], Block._move

    def move(self, stacked, members, count, size):
        taken.append((count, isinstance(members, int)))
        real(self, stacked, members, count, size)

    monkeypatch.setattr(Block, "_move", move)
    return taken


@pytest.mark.parametrize("name", METHODS)
def test_traced_steps_are_close_to_serial_on_ragged_clients(name):
    world = TinyWorld("one_sample")  # clients of 23, 1 and 12 samples
    far, executor = compared(subject_of(name).method(world, cohort=6), world, worth=3, rounds=4)
    assert far < 2e-3
    assert any(callable(step) for step in executor.stacker.habits.programs._known.values()), "some steps were traced"


def test_ragged_lanes_share_every_step_and_no_row_is_copied(steps):
    world = TinyWorld("one_sample")
    far, executor = compared(FedAvg(**world.shared(6)), world, rounds=1)
    assert far < 1e-5
    longest = max(lane for lane, _ in steps)
    assert longest == 6
    assert [lanes for lanes, _ in steps] == sorted((lanes for lanes, _ in steps), reverse=True)
    assert all(first_so_many for _, first_so_many in steps)
    assert not any(kind.unpadded for kind in known(executor))


@pytest.mark.parametrize("kind", ["one_sample", "noisy"])
@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_laying_all_batches_out_changes_no_bit(name, kind, monkeypatch):
    world = TinyWorld(kind)
    method = subject_of(name).method(world, cohort=6)
    found, used = [], together.laid_out
    monkeypatch.setattr(together, "laid_out", lambda *lanes: found.append(used(*lanes)) or found[-1])
    results = []
    for most in (layout.MOST, 0):
        monkeypatch.setattr(layout, "MOST", most)
        results.append(play(method, world, cohort=6, executor=Vectorised(world.scenario))[-1].state.weights)
    assert found[0] is not None
    assert found[-1] is None, "this one was done step by step"
    assert closeness(*results) == 0


class Plainly(FedAvg):
    """A mean of its own, which counts whatever is in the batch."""

    def loss(self, net, batch, **message):
        return -(F.log_softmax(net(batch.x), dim=1) * F.one_hot(batch.y.clamp(min=0), 4)).sum(1).mean()


class Later(FedAvg):
    """The same, from the last epoch on."""

    def loss(self, net, batch, **message):
        late = torch.as_tensor(batch.epoch) >= self.local.epochs - 1
        return super().loss(net, batch) + late * net(batch.x).square().mean()


class Ramped(FedAvg):
    """The same, from the second round on, with a weight that grows."""

    def module(self, client, weights):
        return Classifier(self.net.load(weights), self.local, client.t, self.loss, ramp=client.t / 10)

    def loss(self, net, batch, ramp):
        return super().loss(net, batch) + ramp * net(batch.x).square().mean()


class Gathered(FedAvg):
    """Looks the label up, which fails for one that does not exist."""

    def loss(self, net, batch, **message):
        return -F.log_softmax(net(batch.x), dim=1).gather(1, batch.y[:, None]).mean()


@pytest.mark.parametrize("kind", [Plainly, Later, Ramped, Gathered])
def test_a_loss_that_counts_padding_steps_without_it(kind):
    world = TinyWorld("one_sample")
    far, executor = compared(kind(**world.shared(6)), world, rounds=3)
    assert far < 1e-5
    assert any(kind.unpadded for kind in known(executor))
    assert not any(kind.strict for kind in known(executor)), "or every round would be a kind of its own"
    assert not executor.said


class Weighted(Classifier):
    def __init__(self, net, spec, t, weight, decides):
        super().__init__(net, spec, t)
        self.weight, self.decides = weight, decides

    def loss(self, batch):
        logits = self.net(batch.x)
        if self.decides and self.weight > 1:
            logits = 2 * logits
        return self.weight * F.cross_entropy(logits, batch.y)


class Unequal(FedAvg):
    decides = False

    def module(self, client, weights):
        return Weighted(self.net.load(weights), self.local, client.t, float(client.id % 3), self.decides)


class Deciding(Unequal):
    decides = True


def test_numbers_may_differ_between_lanes(steps):
    world = TinyWorld()
    far, executor = compared(Unequal(**world.shared(6)), world, rounds=1)
    assert far < 1e-5
    assert steps[0] == (6, True)
    assert not any(kind.strict for kind in known(executor))


def test_a_loss_that_decides_by_a_number_is_grouped_by_it(steps):
    world = TinyWorld()
    far, executor = compared(Deciding(**world.shared(6)), world, rounds=1)
    assert far < 1e-5
    assert any(kind.strict for kind in known(executor))
    assert not executor.said
    assert {lanes for lanes, _ in steps[1:]} == {2}, "after the first attempt"


class Rated(FedAvg):
    """Clients with learning rates of their own."""

    def module(self, client, weights):
        return Classifier(self.net.load(weights), replace(self.local, lr=0.01 * (1 + client.id)), client.t)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_learning_rates_may_differ(kind, steps):
    world = TinyWorld()
    shared = world.shared(6)
    if kind == "adam":
        shared["local"] = replace(shared["local"], optimizer=torch.optim.Adam)
    far, _ = compared(Rated(**shared), world, rounds=1)
    assert far < 1e-5
    assert steps[0] == (6, True)


class Drifting(FedAvg):
    """Reads what its module does not hold: a traced step would keep the value of its first round."""

    def loss(self, net, batch, **message):
        return super().loss(net, batch) * SCALE[0]


SCALE = [1.0]


def test_a_traced_step_that_has_become_wrong_is_not_used():
    world = TinyWorld()
    method = Drifting(**world.shared(6))
    executor = Vectorised(world.scenario)
    executor.stacker.habits.programs = Programs(2)
    SCALE[0] = 1.0
    play(method, world, rounds=1, cohort=6, executor=executor)
    SCALE[0] = 5.0
    fast = play(method, world, rounds=2, cohort=6, executor=executor)
    plain = play(method, world, rounds=2, cohort=6)
    assert closeness(plain[-1].state.weights, fast[-1].state.weights) < 1e-5


@pytest.mark.parametrize(
    "settings", [{"padding": 1}, {"padding": (0, 2)}, {"stride": 2}, {"bias": False}, {"groups": 2}]
)
def test_stacked_convolutions_are_those_of_each_lane(settings):
    torch.manual_seed(0)
    for channels in (2, 1):
        if channels % settings.get("groups", 1):
            continue
        layers = [nn.Conv2d(channels, 4, 3, **settings).double() for _ in range(3)]
        x = torch.randn(3, 5, channels, 6, 7, dtype=torch.float64, requires_grad=True)
        weight = torch.stack([layer.weight.detach() for layer in layers]).requires_grad_()
        bias = (
            torch.stack([layer.bias.detach() for layer in layers]).requires_grad_()
            if layers[0].bias is not None
            else None
        )
        result = convolve(layers[0], x, weight, bias)
        expected = torch.stack([layer(part) for layer, part in zip(layers, x, strict=True)])
        assert torch.allclose(result, expected)
        seed = torch.randn_like(expected)
        ours = torch.autograd.grad(result, [x, weight], seed)
        theirs = torch.autograd.grad(expected, [x, *(layer.weight for layer in layers)], seed)
        assert torch.allclose(ours[0], theirs[0])
        assert torch.allclose(ours[1], torch.stack(theirs[1:]))


def test_chains_of_layers_share_or_own_their_parameters():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    x, stacks = torch.randn(4, 5, 1, 4, 4), {}
    for name, value in net.named_parameters():
        stacks[name] = value.detach() + torch.randn(4, *value.shape) if name != "4.bias" else value.detach()
    dims = {name: None if name == "4.bias" else 0 for name in stacks}

    def answer(own, x):
        return torch.func.functional_call(net, own, (x,))

    expected = torch.func.vmap(answer, in_dims=(dims, 0))(stacks, x)
    with stacked_layers(net):
        assert torch.allclose(torch.func.vmap(answer, in_dims=(dims, 0))(stacks, x), expected, atol=1e-6)
        shared = torch.func.vmap(lambda x: net(x))(x)
    assert torch.allclose(shared, torch.stack([net(part) for part in x]), atol=1e-6)
    assert "forward" not in vars(net)


class Lone(nn.Module):
    """Layers without parameters that stand by themselves, as in most networks that people write."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool, self.act, self.norm = nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.LayerNorm(2)
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        return self.head(self.norm(self.act(self.pool(self.conv(x))).flatten(1)))


def test_layers_that_stand_by_themselves_are_stacked():
    torch.manual_seed(0)
    nets = [Lone() for _ in range(4)]
    x = torch.randn(4, 5, 1, 4, 4)
    stacks = {
        name: torch.stack([net.get_parameter(name).detach() for net in nets]) for name, _ in Lone().named_parameters()
    }
    with stacked_layers(nets[0]):
        found = torch.func.vmap(lambda own, x: torch.func.functional_call(nets[0], own, (x,)))(stacks, x)
    assert torch.allclose(found, torch.stack([net(part) for net, part in zip(nets, x, strict=True)]), atol=1e-6)


def test_lanes_that_are_not_finite_prove_nothing():
    """A run that diverges must not decide how others are trained."""
    nan, loss, gradient = float("nan"), torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    lost = [torch.tensor([nan, 2.0]), torch.tensor([[nan, 0.0], [0.0, 1.0]])]
    assert _alike([loss, gradient], lost, 0.0)
    assert _alike([torch.full((2,), nan), gradient * nan], [torch.full((2,), nan), gradient], 0.0) is None
    assert _alike([loss, gradient + 1], lost, 0.1) is False
    assert _alike([torch.full((2,), nan), gradient], [loss, gradient], 0.1) is False


def test_padding_has_no_label_and_real_pixels():
    row = Row([torch.ones(2, 1), torch.tensor([1, 2]), torch.tensor([5, 6]), torch.ones(4)], [0, 0], 1, None, ())
    like = row._replace(tensors=[torch.full((3, 1), 7.0), *torch.zeros(2, 3).long(), torch.ones(4)])
    longer = padded(row, like)
    assert longer.tensors[0].tolist() == [[1], [1], [7]]
    assert longer.tensors[1].tolist() == [1, 2, PADDING]
    assert longer.tensors[2].tolist() == [5, 6, 5]
    assert longer.tensors[3] is row.tensors[3]


def test_methods_that_are_built_alike_are_one():
    world = TinyWorld()
    same = [FedProx(**world.shared(6), mu=0.1, form="norm").loss for _ in range(2)]
    other = FedProx(**world.shared(6), mu=0.2, form="norm").loss
    assert itself(same[0]) == itself(same[1]) != itself(other)


def test_blocks_shrink_as_networks_grow():
    assert [block_size(n) for n in (10, 4810, 13706, 61706, 10**7)] == [64, 50, 16, 8, 8]


def test_a_step_is_traced_once_for_all_rounds():
    world = TinyWorld()
    _, executor = compared(FedAvg(**world.shared(6)), world, worth=3, rounds=6)
    kinds = executor.stacker.habits.programs._known
    assert len({kind for kind, *_ in kinds}) == 1
    assert any(callable(step) for step in kinds.values())


class Late(FedAvg):
    """Its loss decides by the round."""

    def module(self, client, weights):
        return Growing(self.net.load(weights), self.local, client.t)


class Growing(Classifier):
    def loss(self, batch):
        return super().loss(batch) * (2 if self.t > 1 else 1)


def test_a_loss_may_decide_by_the_round():
    world = TinyWorld()
    far, executor = compared(Late(**world.shared(6)), world, worth=3, rounds=4)
    assert far < 1e-4
    assert not executor.said
