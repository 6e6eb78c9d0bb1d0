"""FedAvg and FedProx on a problem small enough for paper and pencil.

One weight w per class and one input x, logits f = w·x (no bias), two classes, full-batch SGD without momentum. With
x = 1 and w = (0, 0) the softmax is (½, ½), so the gradient of the cross-entropy of a sample of class 0 is (−½, +½), and
one step of rate 0.2 gives (+0.1, −0.1): up and down. A client of class 1 moves the other way. FedAvg weighs them by
their sizes.
"""

from dataclasses import replace

import pytest
import torch
from driving import done
from torch import nn

from fnll.executors import Serial
from fnll.federation import World, federate
from fnll.images import InMemory, Transform
from fnll.local import Fit
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedprox import FedProx
from fnll.net import Net
from fnll.scenario.scenario import Scenario
from fnll.testing import tiny_local
from fnll.training import fit
from fnll.types import Batch, Client, State


def linear(*, num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(1, num_classes, bias=False))
    nn.init.zeros_(net[1].weight)
    return net


NET = Net.of(linear, num_classes=2, input_shape=(1, 1, 1))


def scenario(*labels: list[int]) -> Scenario:
    flat = torch.tensor([y for client in labels for y in client])
    images = InMemory(torch.full((len(flat), 1, 1, 1), 255, dtype=torch.uint8))  # x = 1 after scaling
    shards = torch.arange(len(flat)).split([len(client) for client in labels])
    return Scenario(images, flat, shards, 2, Transform((0.0,), (1.0,)), "hand", "hand")


def run(method, world: Scenario, rounds: int = 1) -> torch.Tensor:
    public = World(world.sizes, 2, (1, 1, 1))
    budget = rounds * method.cohort_size
    *_, (last, _) = federate(method, Serial(world), public, budget=budget, seed=0)
    return last.state.weights["1.weight"].flatten()


def settings(epochs: int = 1, lr: float = 0.2) -> dict:
    return {"net": NET, "local": tiny_local(epochs=epochs, batch_size=100, lr=lr, momentum=0.0), "cohort_size": 2}


def test_fedavg_one_step_by_hand():
    # client 0: three samples of class 0 -> (+.1, −.1); client 1: one of class 1 -> (−.1, +.1)
    # mean by size: ¾(.1, −.1) + ¼(−.1, .1) = (.05, −.05)
    result = run(FedAvg(**settings()), scenario([0, 0, 0], [1]))
    assert result.tolist() == pytest.approx([0.05, -0.05], abs=1e-7)


def test_fedavg_two_local_steps_by_hand():
    # second step of client 0 from (.1, −.1): p0 = 1/(1+e^-.2) = .549834, gradient (p0 − 1, 1 − p0) = (−.450166, +)
    # -> (.1900332, −.1900332); client 1 the mirror image; equal sizes cancel; sizes 3:1 give half of it
    result = run(FedAvg(**settings(epochs=2)), scenario([0, 0, 0], [1]))
    assert result.tolist() == pytest.approx([0.0950166, -0.0950166], abs=1e-6)


def test_fedavg_two_rounds_by_hand():
    # round 2 starts at (.05, −.05): p0 = 1/(1+e^-.1) = .524979
    # client 0: (.05 + .2·.475021, ...) = (.1450042, −.1450042); client 1: .05 − .2·.524979 = −.0549958
    # ¾·.1450042 − ¼·.0549958 = .0950042
    result = run(FedAvg(**settings()), scenario([0, 0, 0], [1]), rounds=2)
    assert result.tolist() == pytest.approx([0.0950042, -0.0950042], abs=1e-6)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        # after step 1 client 0 is at (.1, −.1), the anchor at 0. Cross-entropy's gradient is (−.450166, .450166).
        ("half_squared", 0.1 + 0.2 * (0.450166 - 2 * 0.1)),  # μ w = 2·.1
        ("squared", 0.1 + 0.2 * (0.450166 - 4 * 0.1)),  # 2 μ w
        ("norm", 0.1 + 0.2 * (0.450166 - 2 / 2**0.5)),  # μ w/‖w‖ = 2·.1/.141421
        ("sum_tensor_norms", 0.1 + 0.2 * (0.450166 - 2 / 2**0.5)),  # one tensor: the same
    ],
)
def test_fedprox_second_step_by_hand(form, expected):
    both_up_and_down = scenario([0, 0], [1, 1])
    method = FedProx(**{**settings(epochs=2), "cohort_size": 1}, mu=2.0, form=form)
    weights = {"1.weight": torch.zeros(2, 1)}
    for k, sign in ((0, 1), (1, -1)):
        client = both_up_and_down.client(k, t=0, memory={}, labels=None, seed=0, device=torch.device("cpu"))
        trained = done(method.train(client, weights=weights)).weights["1.weight"].flatten()
        assert trained.tolist() == pytest.approx([sign * expected, -sign * expected], abs=1e-6)


def test_the_proximal_gradient_is_mu_times_the_drift():
    anchor = {"1.weight": torch.tensor([[0.3], [-0.4]])}
    net = NET.load({"1.weight": torch.tensor([[1.0], [-2.0]])})
    batch = Batch((torch.ones(1, 1, 1, 1),), torch.tensor([0]), torch.tensor([0]), 0, 0)
    gradients = []
    for mu in (0.0, 0.7):
        net.zero_grad()
        FedProx(**settings(), mu=mu, form="half_squared").loss(net, batch, weights=anchor).backward()
        gradients.append(net[1].weight.grad.clone())
    assert torch.allclose(gradients[1] - gradients[0], 0.7 * torch.tensor([[0.7], [-1.6]]), atol=1e-6)


def test_fedprox_without_its_term_is_fedavg_bit_for_bit():
    world = scenario([0, 1, 0], [1, 1, 0, 0])
    zero = run(FedProx(**settings(epochs=3), mu=0.0, form="half_squared"), world, rounds=3)
    assert torch.equal(zero, run(FedAvg(**settings(epochs=3)), world, rounds=3))


def test_an_outer_method_may_hand_over_weights():
    weights = {"1.weight": torch.ones(2, 1)}
    assert FedAvg(**settings()).init(None, weights).weights is weights


def test_the_learning_rate_decays_with_the_round():
    spec = tiny_local(lr=0.2, lr_decay=0.5, epochs=1, batch_size=9, momentum=0.0)
    world = scenario([0])
    method = FedAvg(net=NET, local=spec, cohort_size=1)
    for t, expected in ((0, 0.1), (2, 0.025)):
        client = world.client(0, t=t, memory={}, labels=None, seed=0, device=torch.device("cpu"))
        moved = done(method.train(client, weights={"1.weight": torch.zeros(2, 1)})).weights["1.weight"][0]
        assert moved.item() == pytest.approx(expected)


def test_kept_optimizer_goes_on_with_its_momentum():
    # Two rounds of one epoch with kept momentum are one round of two epochs (full batches, so order cannot matter).
    world = scenario([0, 0, 1])
    spec = tiny_local(epochs=1, batch_size=9, lr=0.2, momentum=0.9, keep_optimizer=True)
    method = FedAvg(net=NET, local=spec, cohort_size=1)
    client = world.client(0, t=0, memory={}, labels=None, seed=0, device=torch.device("cpu"))
    first = done(method.train(client, weights={"1.weight": torch.zeros(2, 1)}))
    second = done(method.train(replace(client, memory=first.memory), weights=first.weights))
    long = replace(method, local=replace(spec, epochs=2))
    at_once = done(long.train(client, weights={"1.weight": torch.zeros(2, 1)}))
    assert torch.allclose(second.weights["1.weight"], at_once.weights["1.weight"])
    forgetful = done(method.train(replace(client, memory={}), weights=first.weights))
    assert not torch.allclose(second.weights["1.weight"], forgetful.weights["1.weight"])


def test_model_is_the_network_with_the_states_weights():
    method = FedAvg(**settings())
    model = method.model(State({"1.weight": torch.tensor([[2.0], [-1.0]])}))
    assert model(torch.ones(1, 1, 1, 1)).tolist() == [[2.0, -1.0]]


def test_fit_returns_weights_that_share_nothing_with_the_module():
    method = FedAvg(**settings())
    client: Client = scenario([0]).client(0, t=0, memory={}, labels=None, seed=0, device=torch.device("cpu"))
    module = method.module(client, weights={"1.weight": torch.zeros(2, 1)})
    weights = fit(Fit(module, client)).weights
    with torch.no_grad():
        module.net[1].weight.fill_(9)
    assert weights["1.weight"].max() < 1
