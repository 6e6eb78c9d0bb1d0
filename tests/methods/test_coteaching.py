"""Co-teaching: the choice of samples by hand, the exchange, and its limit of two FedAvgs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fnll.errors import UserError
from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.federation import Federation, federate
from fnll.harness.config import compose
from fnll.local import Fit
from fnll.methods.coteaching import CoTaught, CoTaughtApart, CoTeaching, forget_rate_of, small_loss
from fnll.methods.fedavg import FedAvg
from fnll.testing import TinyWorld, play, same, tiny_local
from fnll.training import fit
from fnll.types import Batch, State
from fnll.weights import Weights, all_finite, part


def made(world: TinyWorld, cohort: int = 3, clip_norm: float | None = None, **changes: Any) -> CoTeaching:
    shared = world.shared(cohort, clip_norm=clip_norm)
    return CoTeaching(**{**shared, "forget_rate": 0.4, "gradual": 3, **changes})


# Which samples are kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_smallest_losses_come_first(dtype: torch.dtype) -> None:
    losses = torch.tensor([0.9, 0.1, 2.0, 0.4, 0.3], dtype=dtype)
    assert small_loss(losses, 0.4).tolist() == [1, 4, 3]
    assert small_loss(losses, 0.0).tolist() == [1, 4, 3, 0, 2]


@pytest.mark.parametrize(
    ("size", "rate", "kept"),
    [
        (50, 0.2, 40), (50, 0.1, 45), (50, 0.11, 44),  # 44.5 samples are 44
        (10, 0.9, 1), (20, 0.9, 2), (5, 0.8, 1),  # in floating point 0.99…, 1.99… and 0.99…: truncated, 0, 1 and 0
        (1, 0.2, 1), (3, 0.99, 1),  # 0.8 and 0.03 of a sample: never none
    ],
)  # fmt: skip
def test_how_many_are_kept(size: int, rate: float, kept: int) -> None:
    assert len(small_loss(torch.rand(size), rate)) == kept


def test_awkward_losses() -> None:
    assert small_loss(torch.ones(5), 0.4).tolist() == [0, 1, 2]
    assert small_loss(torch.tensor([torch.nan, torch.inf, 1.0]), 0.3).tolist() == [2, 1]
    assert small_loss(torch.zeros(0), 0.2).tolist() == []


def test_the_forget_rate_rises_linearly() -> None:
    # 100 values from 0 to 0.2: steps of 0.2/99, 50 of which are 0.10101
    rates = {t: forget_rate_of(t, 0.2, 100) for t in (0, 50, 99, 100, 400)}
    assert rates == pytest.approx({0: 0, 50: 0.101010, 99: 0.2, 100: 0.2, 400: 0.2}, abs=1e-6)
    assert [forget_rate_of(t, 0.2, 0) for t in (0, 1)] == [0.2, 0.2]
    assert [forget_rate_of(t, 0.2, 1) for t in (0, 1)] == [0, 0.2]


# The exchange


class Scores(nn.Module):
    """Answers with its parameters, whatever it is shown: a row of logits for each sample."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[: len(x)]


def pair_of(kind: type[CoTaught], **local: Any) -> tuple[CoTaught, Batch]:
    """Network a is surest of samples 0 and 1, network b of 2 and 3; half of the four are forgotten."""
    easy, hard = [2.0, 0.0], [0.0, 1.0]
    a, b = torch.tensor([easy, easy, hard, hard]), torch.tensor([hard, hard, easy, easy])
    module = kind(nn.ModuleDict({"a": Scores(a), "b": Scores(b)}), tiny_local(**local), 0, forget_rate=0.5)
    return module, Batch((torch.zeros(4, 1),), torch.zeros(4, dtype=torch.int64), torch.arange(4), 0, 0)


def test_each_network_learns_what_the_other_has_chosen() -> None:
    module, batch = pair_of(CoTaught)
    hard = F.cross_entropy(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))  # what each is given is hard for it
    assert [float(loss.detach()) for loss in module.losses(batch)] == pytest.approx([float(hard)] * 2)
    module.loss(batch).backward()
    # of cross-entropy: (p − onehot) / 2 on the two samples given, p₁ = e / (1 + e) = 0.731059
    for name, given, other in (("a", [2, 3], [0, 1]), ("b", [0, 1], [2, 3])):
        gradient = module.net[name].logits.grad
        assert gradient[given].flatten().tolist() == pytest.approx([-0.365529, 0.365529] * 2, abs=1e-6)
        assert not gradient[other].any()


@pytest.mark.parametrize("t", [0, 5])
def test_only_the_given_samples_move_a_clients_networks(t: int) -> None:
    """The whole job against a loop written down from the algorithm."""
    world = TinyWorld()
    method = made(world)
    state = method.init(Federation(world.public, Serial(world.scenario), budget=3, seed=0, t=-1))
    client = world.scenario.client(0, t=t, memory={}, labels=None, seed=11, device=torch.device("cpu"))
    module = method.module(client, state.weights)
    nets = [method.net.load(part(state.weights, name)) for name in "ab"]
    optimizers = [method.local.optimizer_for(net.parameters(), t) for net in nets]
    for batch in client.batches(5, 2):
        keep = {0: len(batch.y), 5: {5: 3, 2: 1}[len(batch.y)]}[t]  # 0.6 of 5 and of 2 samples
        each = [F.cross_entropy(net(batch.x), batch.y, reduction="none") for net in nets]
        order = [losses.argsort() for losses in each]
        for mine, peer in ((0, 1), (1, 0)):
            optimizers[mine].zero_grad()
            each[mine][order[peer][:keep]].mean().backward()
            optimizers[mine].step()

    trained = fit(Fit(module, client)).weights
    for name, net in zip("ab", nets, strict=True):
        for key, value in net.state_dict().items():
            assert torch.allclose(part(trained, name)[key], value, atol=1e-6)


# The limit: nothing is forgotten


@dataclass(frozen=True, kw_only=True)
class FromB(FedAvg):
    """FedAvg from the weights that Co-teaching's second network starts with."""

    def init(self, fed: Federation, weights: Weights | None = None) -> State:
        return State(self.net.fresh(fed.seed("net", "b")))


@pytest.mark.parametrize("clip_norm", [None, 0.3])
@pytest.mark.parametrize("kind", ["noisy", "one_sample"])
def test_forget_rate_zero_trains_two_fedavgs_bit_for_bit(kind: str, clip_norm: float | None) -> None:
    world = TinyWorld(kind)
    ours = play(made(world, forget_rate=0.0, clip_norm=clip_norm), world, rounds=4)
    for name, single in (("a", FedAvg), ("b", FromB)):
        theirs = play(single(**world.shared(clip_norm=clip_norm)), world, rounds=4)
        assert all(same(part(o.state.weights, name), t.state.weights) for o, t in zip(ours, theirs, strict=True))


def test_with_a_forget_rate_it_is_not_fedavg() -> None:
    world = TinyWorld()
    ours, theirs = (play(method, world, rounds=2)[-1] for method in (made(world), FedAvg(**world.shared())))
    assert not same(part(ours.state.weights, "a"), theirs.state.weights)


def test_clipping_bounds_each_network_by_itself() -> None:
    world = TinyWorld()
    assert type(made(world).module(_client(world), _start(world).weights)) is CoTaught
    assert type(made(world, clip_norm=0.3).module(_client(world), _start(world).weights)) is CoTaughtApart


def _client(world: TinyWorld) -> Any:
    return world.scenario.client(0, t=0, memory={}, labels=None, seed=1, device=torch.device("cpu"))


def _start(world: TinyWorld) -> State:
    return made(world).init(Federation(world.public, Serial(world.scenario), budget=3, seed=0, t=-1))


# What a round sends, tells and hands on


def test_networks_start_apart_and_take_over_what_an_outer_method_hands_over() -> None:
    world = TinyWorld()
    fed = Federation(world.public, Serial(world.scenario), budget=3, seed=0, t=-1)
    own = made(world).init(fed).weights
    assert not same(part(own, "a"), part(own, "b"))
    given = world.shared()["net"].fresh(5)
    assert same(part(made(world).init(fed, given).weights, "a"), given)


def test_it_costs_two_models_each_way_and_traces_what_network_a_trains_on() -> None:
    world = TinyWorld("balanced")
    rows = list(federate(made(world), Serial(world.scenario), world.public, budget=12, seed=0))
    plain = list(federate(FedAvg(**world.shared()), Serial(world.scenario), world.public, budget=12, seed=0))
    totals, single = rows[-1][0].totals, plain[-1][0].totals
    assert (totals.up_bytes, totals.down_bytes) == (2 * single.up_bytes, 2 * single.down_bytes)
    assert totals.client_updates == single.client_updates
    # Twelve samples in batches of 5, 5 and 2: of these 12; 3 + 3 + 1 at the full rate of 0.4, 4 + 4 + 1 at half of it
    kept = [{int(trace.values["clean"].sum()) for trace in ledger.traces} for _, ledger in rows]
    assert kept == [{12}, {9}, {7}, {7}]


@pytest.mark.parametrize("kind", ["noisy", "one_sample"])
def test_clients_are_vectorised_and_close_to_serial(kind: str) -> None:
    world = TinyWorld(kind)
    method = made(world, cohort=6)
    plain, executor = play(method, world, rounds=4, cohort=6), Vectorised(world.scenario)
    fast = play(method, world, rounds=4, cohort=6, executor=executor)
    assert not executor.said, "everything was vectorised"
    left, right = plain[-1].state.weights, fast[-1].state.weights
    assert max(float((left[name] - right[name]).abs().max()) for name in left) < 2e-3


def test_a_client_of_one_sample_keeps_it() -> None:
    world = TinyWorld("one_sample")
    last = play(made(world, cohort=6, forget_rate=0.9, gradual=0), world, rounds=3, cohort=6)[-1]
    assert all_finite(last.state.weights)


@pytest.mark.parametrize(
    ("setting", "said"), [({"forget_rate": 1.0}, "at least 0 and less than 1"), ({"gradual": -1}, "at least 0")]
)
def test_settings_are_checked(setting: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        made(TinyWorld(), **setting)


@pytest.mark.parametrize(("data", "rounds"), [("cifar10", 500), ("cifar100", 1000), ("webvision_mini", 1000)])
def test_presets_are_fedrns(data: str, rounds: int) -> None:
    cfg = compose(["method=coteaching", f"dataset={data}", "preset=paper"]).cfg
    assert (cfg.protocol, cfg.rounds, cfg.local.lr, cfg.local.batch_size) == ("paper", rounds, 0.01, 50)
    assert (cfg.method.forget_rate, cfg.method.gradual) == (0.2, 100)
