"""FedDyn: the server's step by hand, the local gradient, what clients keep, each switch alone, and its limits."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fnll.errors import UserError
from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.federation import Federation
from fnll.harness.config import compose
from fnll.methods.fedavg import FedAvg
from fnll.methods.feddyn import FedDyn, FedDynState, server_model
from fnll.net import Net
from fnll.testing import TinyWorld, play, same, subject_of
from fnll.types import Batch, Update
from fnll.weights import mean

CODE = {"alpha_of_client": "inverse_size", "quadratic": "weight_decay"}


SETTINGS = dict(subject_of("feddyn").settings)


def make(world, cohort=3, local=None, **settings):
    return FedDyn(**{**world.shared(cohort, **(local or {})), **SETTINGS, **settings})


def apart(left, right):
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)


# The server


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_server_model_by_hand(dtype):
    # θ_s = 1; of three clients two send 1.5 and 0.7: h = (0.5, −0.3, 0), so 1.1 + 0.2/3
    found = server_model(torch.tensor([1.1], dtype=dtype), torch.tensor([0.2 / 3], dtype=dtype))
    assert found.item() == pytest.approx(1.166667, abs=1e-6)
    assert found.dtype == dtype


def test_the_servers_correction_is_the_mean_over_all_clients():
    method, fed = make(TinyWorld()), SimpleNamespace(inhabited=[0, 1, 2])
    state = FedDynState({"w": torch.tensor([1.0])}, correction={"w": torch.zeros(1)}, average={}, latest={})
    updates = [Update({"w": torch.tensor([value])}, client=k, size=1) for k, value in enumerate((1.5, 0.7))]
    first = method._corrected(state, updates, fed)
    assert first["w"].item() == pytest.approx(0.2 / 3)
    again = replace(state, weights={"w": torch.tensor([1.166667])}, correction=first)
    # the third client alone moves by −0.1: h = (0.5, −0.3, −0.1)
    third = method._corrected(again, [Update({"w": torch.tensor([1.066667])}, client=2, size=1)], fed)
    assert third["w"].item() == pytest.approx(0.1 / 3, abs=1e-6)


def test_it_comes_to_rest_where_the_mean_loss_is_smallest():
    # Losses a_k/2 (θ − b_k)², whose clients' minima are b_k and whose mean's is Σ a_k b_k / Σ a_k = 4; mean of b_k: 3.
    a, b, alpha = (torch.tensor(v, dtype=torch.float64) for v in ((3.0, 1.0), (5.0, 1.0), 0.5))
    server, h = torch.tensor(0.0, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for _ in range(200):
        local = (a * b + alpha * (server - h)) / (a + alpha)  # where a client's loss with both penalties is smallest
        h = h + local - server
        server = server_model(local.mean(), h.mean())
    assert server.item() == pytest.approx(4.0, abs=1e-9)
    assert local.tolist() == pytest.approx([4.0, 4.0], abs=1e-9)
    assert (-alpha * h).tolist() == pytest.approx((a * (4 - b)).tolist()), "h is −∇L_k/α"


@pytest.mark.parametrize("kind", ["noisy", "empty", "one_sample"])
def test_server_and_clients_agree_on_the_corrections(kind):
    world = TinyWorld(kind)
    last = play(make(world), world)[-1]
    told = mean([kept.memory["h"] for kept in last.clients.values()])
    share = len(last.clients) / sum(size > 0 for size in world.scenario.sizes)
    assert apart(last.state.correction, {name: share * value for name, value in told.items()}) < 1e-6
    assert max(float(value.abs().max()) for value in last.state.correction.values()) > 1e-3
    sent = server_model(last.state.average, last.state.correction)
    assert same(dict(last.state.weights), dict(sent))


def test_the_judged_models():
    world = TinyWorld()
    state = {judged: play(make(world, judged=judged), world)[-1].state for judged in ("server", "participants")}
    everyone = make(world, judged="all_clients")
    history = play(everyone, world)
    assert same(dict(state["server"].weights), dict(history[-1].state.weights)), "training is the same"
    weights = {judged: dict(make(world, judged=judged).model(found).state_dict()) for judged, found in state.items()}
    assert apart(weights["server"], state["server"].weights) == 0
    assert apart(weights["participants"], state["participants"].average) == 0
    assert apart(weights["server"], weights["participants"]) > 0
    latest = history[-1].state.latest
    assert sorted(latest) == list(range(6))
    assert apart(dict(everyone.model(history[-1].state).state_dict()), mean(list(latest.values()))) == 0
    # after one round, three of six clients still have the first model
    first = history[0].state
    expected = mean([everyone.init(_server(world)).weights, first.average])
    assert apart(dict(everyone.model(first).state_dict()), expected) < 1e-6


def _server(world):
    return Federation(world.public, Serial(world.scenario), budget=24, seed=0, t=-1)


# The clients


class Fixed(nn.Module):
    """A network that answers with its only parameter, whatever it sees."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=torch.float64))

    def forward(self, x):
        return self.logits.expand(len(x), -1)


@pytest.mark.parametrize("quadratic", ["in_loss", "weight_decay"])
def test_the_gradient_of_the_local_loss(quadratic):
    net = Fixed(1.0, 2.0, 0.5)
    batch = Batch((torch.zeros(2, 1),), torch.tensor([0, 2]), torch.arange(2), 0, 0)
    sent, h = torch.tensor([0.5, 1.0, 1.0]).double(), torch.tensor([0.1, -0.2, 0.3]).double()
    facts = {"weights": {"logits": sent}, "strength": torch.tensor(0.7), "h": {"logits": h}}
    make(TinyWorld(), quadratic=quadratic).loss(net, batch, **facts).backward()
    theta = net.logits.detach()
    own = theta.softmax(0) - F.one_hot(batch.y, 3).double().mean(0)  # ∇ of the mean cross-entropy
    decayed = 0 if quadratic == "in_loss" else 0.7 * theta  # what the optimiser adds
    assert torch.allclose(net.logits.grad + decayed, own + 0.7 * (theta - sent + h), atol=1e-7)


def test_h_is_the_sum_of_a_clients_drifts():
    world = TinyWorld()
    history = play(make(world, cohort=6), world, rounds=2, cohort=6)
    first, second = (snapshot.clients[0].memory["h"] for snapshot in history)
    assert first.keys() == history[0].state.weights.keys()
    assert apart(first, second) > 0
    alone = play(make(world, cohort=6, judged="all_clients"), world, rounds=2, cohort=6)
    drift = {name: v - alone[0].state.weights[name] for name, v in alone[1].state.latest[0].items()}
    assert apart(second, {name: first[name] + drift[name] for name in first}) < 1e-6


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_quadratic_term_is_the_same_in_either_place_unless_gradients_are_clipped(momentum):
    world = TinyWorld()
    for clip_norm, close in ((None, True), (0.05, False)):
        local = {"momentum": momentum, "clip_norm": clip_norm}
        runs = [
            play(make(world, local=local, alpha=0.3, quadratic=q), world, rounds=3)[-1].state.weights
            for q in ("in_loss", "weight_decay")
        ]
        assert (apart(*runs) < 1e-5) == close


def test_alpha_of_clients():
    world = TinyWorld("one_sample")  # sizes 23, 1, 12, 12, 12, 12: mean 12
    fed = _server(world)
    equal, inverse = make(world, alpha=0.1), make(world, alpha=0.1, alpha_of_client="inverse_size")
    assert [equal._alpha(k, fed).item() for k in (0, 1)] == pytest.approx([0.1, 0.1])
    assert [inverse._alpha(k, fed).item() for k in (0, 1, 2)] == pytest.approx([0.1 * 12 / 23, 1.2, 0.1])


def test_the_mean_of_models_ignores_sample_counts_unless_told():
    world = TinyWorld()
    updates = [
        Update({"w": torch.tensor([value])}, client=k, size=n) for k, (value, n) in enumerate([(1.0, 1), (4.0, 2)])
    ]
    means = [make(world, client_weights=w).aggregate(None, updates, None)["w"].item() for w in ("equal", "samples")]
    assert means == [2.5, 3]


# Limits


@pytest.mark.parametrize("kind", ["noisy", "one_sample", "empty"])
def test_without_its_ideas_it_is_fedavg(kind):
    world = TinyWorld(kind)
    off = {"alpha": 0.0, "server_correction": False, "client_weights": "samples"}
    ours = play(make(world, **off), world)[-1]
    assert same(dict(ours.state.weights), dict(play(FedAvg(**world.shared()), world)[-1].state.weights))


@pytest.mark.parametrize("off", [{"alpha": 0.0}, {"server_correction": False}])
def test_each_of_its_ideas_alone_makes_it_something_else(off):
    world = TinyWorld("balanced")
    ours = play(make(world, **off), world)[-1]
    assert not same(dict(ours.state.weights), dict(play(FedAvg(**world.shared()), world)[-1].state.weights))


class Normed(nn.Module):
    """A network with running statistics."""

    def __init__(self, num_classes):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, num_classes)

    def forward(self, x):
        return self.head(self.norm(x.flatten(1)))


@pytest.mark.parametrize("settings", [{}, CODE])
def test_running_statistics_are_averaged_and_have_no_correction(settings):
    world = TinyWorld("one_sample")
    method = replace(make(world, judged="all_clients", **settings), net=Net.of(Normed, num_classes=4))
    state = play(method, world)[-1].state
    assert set(state.correction) == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        assert torch.equal(state.weights[name], state.average[name])
    assert not torch.equal(state.weights["head.weight"], state.average["head.weight"])


@pytest.mark.parametrize("settings", [{}, CODE], ids=["paper", "code"])
def test_close_to_serial_when_vectorised(settings):
    world = TinyWorld("one_sample")
    method, fast = make(world, cohort=6, **settings), Vectorised(world.scenario)
    plain, quick = (play(method, world, rounds=4, cohort=6, executor=e)[-1].state.weights for e in (None, fast))
    assert apart(plain, quick) < 2e-3
    assert not fast.said, "everything was vectorised"


def test_settings_are_checked():
    with pytest.raises(UserError, match=r"method\.alpha must be at least 0, got -1"):
        make(TinyWorld(), alpha=-1.0)
    with pytest.raises(UserError, match=r"method\.judged must be one of server, participants, all_clients"):
        make(TinyWorld(), judged="cloud")


@pytest.mark.parametrize(("dataset", "clients"), [("cifar10", 100), ("cifar100", 50)])
def test_presets(dataset, clients):
    cfg = compose(["method=feddyn", f"dataset={dataset}", f"preset=feddyn_{dataset}"]).cfg
    assert (cfg.protocol, cfg.num_clients, cfg.rounds) == ("paper", clients, 1000)
    assert (cfg.local.lr, cfg.local.lr_decay, cfg.local.clip_norm, cfg.local.momentum) == (0.1, 0.998, 10.0, 0.5)
    assert (cfg.method.alpha, cfg.method.server_correction, cfg.method.client_weights) == (0.01, True, "equal")
    assert {name: cfg.method[name] for name in CODE} == CODE
