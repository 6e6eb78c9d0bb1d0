"""RoFL: centroids by hand, the local objective sample by sample, and what each switch changes."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fnll.errors import UserError
from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.federation import federate
from fnll.harness.config import compose
from fnll.methods.fedavg import FedAvg
from fnll.methods.rofl import (
    Centroids,
    RoFL,
    class_means,
    merge_centroids,
    nearest_centroid,
    small_losses,
    update_centroids,
)
from fnll.models import Network
from fnll.net import Net
from fnll.testing import TinyWorld, canonical, play, same, subject_of, tiny_local
from fnll.types import CPU, Batch
from fnll.weights import all_finite

DTYPES = (torch.float32, torch.float64)


subject = cache(subject_of)  # composing a config takes longer than a tiny run


def rofl(world: TinyWorld, cohort: int = 3, name: str = "rofl", **settings: Any) -> RoFL:
    method = subject(name).method(world, cohort, **settings)
    assert isinstance(method, RoFL)
    return method


# Centroids


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_centroid_moves_by_the_squared_cosine(dtype: torch.dtype) -> None:
    # cos((1, 0), (1, 1)) = 1/√2, squared 1/2: half of (1, 0) and half of (1, 1)
    new = update_centroids(torch.tensor([[1.0, 0.0]], dtype=dtype), torch.ones(1, 2, dtype=dtype), torch.tensor([0]))
    assert new.dtype == dtype
    assert torch.allclose(new, torch.tensor([[1.0, 0.5]], dtype=dtype), atol=1e-6)


def test_a_centroid_moves_towards_the_mean_of_its_class_and_absent_classes_stay() -> None:
    old = torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.0, 2.0]])
    features = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, -1.0]])
    # class 0: mean (1, 1), s² = 1/2; class 1: no sample; class 2: mean (0, -1), s² = 1, so the mean itself
    new = update_centroids(old, features, torch.tensor([0, 0, 2]))
    assert torch.allclose(new, torch.tensor([[1.0, 0.5], [0.0, 3.0], [0.0, -1.0]]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_server_weighs_centroids_by_their_cosines(dtype: torch.dtype) -> None:
    # cosines with (1, 0): 1 and 1/√2; ((2, 0) + (1, 1)/√2) / (1 + 1/√2)
    merged = merge_centroids(
        torch.tensor([[1.0, 0.0]], dtype=dtype), torch.tensor([[[2.0, 0.0]], [[1.0, 1.0]]], dtype=dtype)
    )
    assert merged.dtype == dtype
    assert merged[0].tolist() == pytest.approx([1.585786, 0.414214], abs=1e-6)


def test_cosines_are_signed() -> None:
    # cosines 1 and -1/√2: ((2, 0) - (-1, 1)/√2) / (1 - 1/√2)
    merged = merge_centroids(torch.tensor([[1.0, 0.0]]), torch.tensor([[[2.0, 0.0]], [[-1.0, 1.0]]]))
    assert merged[0].tolist() == pytest.approx([9.242641, -2.414214], abs=1e-4)


def test_equal_centroids_are_their_merger() -> None:
    rows = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    for server in (rows, torch.randn(4, 7, generator=torch.Generator().manual_seed(1))):
        assert torch.allclose(merge_centroids(server, rows.expand(3, 4, 7)), rows, atol=1e-5)


def test_merging_stays_finite_where_cosines_cancel_or_a_class_is_missing() -> None:
    server = torch.tensor([[1.0, 0.0], [1.0, 0.0], [5.0, 6.0], [0.0, 0.0]])
    clients = torch.tensor(
        [
            [[3.0, 0.0], [0.0, 0.0], [0.0, 0.0], [4.0, 2.0]],
            [[-1.0, 0.0], [2.0, 2.0], [0.0, 0.0], [0.0, 0.0]],
        ]
    )
    # cancelled: the plain mean (1, 0); one client without the class: the other's; nobody has it: the server's; the
    # server does not know it: the mean of those who do
    expected = torch.tensor([[1.0, 0.0], [2.0, 2.0], [5.0, 6.0], [4.0, 2.0]])
    assert torch.allclose(merge_centroids(server, clients), expected)


def test_class_means_of_absent_classes_are_zero() -> None:
    means = class_means(torch.tensor([[1.0, 3.0], [3.0, 5.0]]), torch.tensor([2, 2]), 4)
    assert means.tolist() == [[0, 0], [0, 0], [2, 4], [0, 0]]


def test_the_nearest_centroid_is_nearest_in_angle_and_is_never_an_unknown_one() -> None:
    centroids = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.1, 0.1]])
    features = torch.tensor([[1.0, 0.9], [-1.0, 0.0]])
    # (1, 0.9) points along (0.1, 0.1) although (10, 0) is larger; to (-1, 0) both are opposite, and zeros are no answer
    assert nearest_centroid(centroids, features).tolist() == [2, 2]


# Selection and schedules


@pytest.mark.parametrize(
    ("size", "rate", "count"), [(50, 0.2, 40), (10, 0.9, 1), (10, 0.7, 3), (5, 0.0, 5), (1, 0.2, 1), (3, 0.99, 1)]
)
def test_so_many_small_losses_are_kept_and_never_none(size: int, rate: float, count: int) -> None:
    losses = torch.arange(size, 0, -1).float()
    assert small_losses(losses, rate).tolist() == list(range(size - count, size))


def test_equal_losses_are_kept_in_order() -> None:
    assert small_losses(torch.ones(5), 0.4).tolist() == [0, 1, 2]


def test_the_forget_rate_grows_from_zero() -> None:
    method = rofl(TinyWorld(), forget_rate=0.2, forget_ramp=10)
    assert [method.forgetting(t) for t in (0, 3, 9, 10, 99)] == pytest.approx([0, 0.2 / 3, 0.2, 0.2, 0.2])
    assert replace(method, forget_ramp=0).forgetting(0) == 0.2
    assert [replace(method, forget_ramp=1).forgetting(t) for t in (0, 1)] == [0, 0.2]


def test_the_weight_of_centroids_grows_until_pseudo_labels_begin() -> None:
    method = rofl(TinyWorld(), centroid_weight=2.0, pseudo_from=4)
    assert [method.pull(t) for t in (0, 1, 3, 4, 50)] == [0, 0.5, 1.5, 2, 2]
    assert replace(method, pseudo_from=0).pull(0) == 2


# The local objective


class Mirror(Network):
    """A network whose features are its input times one parameter, and whose logits are fixed multiples of these."""

    def __init__(self) -> None:
        super().__init__(nn.Identity(), nn.Linear(2, 2, bias=False))
        self.scale = nn.Parameter(torch.ones(()))
        nn.init.eye_(self.head.weight)

    def features(self, x: Tensor) -> Tensor:
        return x * self.scale


def module(**changes: Any) -> Centroids:
    settings: dict[str, Any] = {
        "centroids": torch.eye(2),
        "labels": torch.tensor([0, 1, 0]),
        "answers": None,
        "forget_rate": 0.0,
        "centroid_weight": 0.0,
        "centroid_loss": "sum",
        "entropy_weight": 0.0,
    }
    return Centroids(Mirror(), tiny_local(), 0, **{**settings, **changes})


# Feature (2, 0) is near centroid 0, (0.2, 1) near 1, (0, 3) near 1: with labels 0, 1, 0 the last one is doubtful.
X = torch.tensor([[2.0, 0.0], [0.2, 1.0], [0.0, 3.0]])
BATCH = Batch((X,), torch.tensor([0, 1, 0]), torch.arange(3), 0, 0)


def test_given_labels_count_before_pseudo_labels_begin() -> None:
    assert torch.equal(module().training_step(BATCH, 0), F.cross_entropy(X, BATCH.y))


def test_doubtful_samples_take_the_global_models_answer() -> None:
    one = module(answers=torch.tensor([1, 0, 1]))  # answers for confident samples are not asked
    loss = one.training_step(BATCH, 0)
    assert torch.allclose(loss, F.cross_entropy(X, torch.tensor([0, 1, 1])))
    assert one.trusted.tolist() == [True, True, False]


def test_large_losses_are_left_out() -> None:
    one = module(forget_rate=0.3, labels=torch.tensor([0, 1, 0]))  # ⌊0.7 · 3⌋ = 2
    loss = one.training_step(BATCH, 0)
    assert torch.allclose(loss, F.cross_entropy(X[:2], BATCH.y[:2]))
    assert one.trusted.tolist() == [True, True, False]


def test_rows_of_a_batch_are_positions_in_the_clients_data() -> None:
    one = module(labels=torch.zeros(9, dtype=torch.int64), answers=torch.tensor([0, 0, 0, 0, 0, 1, 0, 0, 0]))
    loss = one.training_step(replace(BATCH, index=torch.tensor([7, 1, 5])), 0)
    assert torch.allclose(loss, F.cross_entropy(X, torch.tensor([0, 1, 1])))
    assert one.trusted.nonzero().flatten().tolist() == [1, 7]


@pytest.mark.parametrize(("kind", "value"), [("sum", 1.04), ("mean", 1.04 / 6)])
def test_confident_samples_are_pulled_to_their_centroids(kind: str, value: float) -> None:
    # ‖(2, 0) − (1, 0)‖² = 1 and ‖(0.2, 1) − (0, 1)‖² = 0.04; the third sample is not confident. The mean is over the
    # two features of all three kept samples
    one = module(centroid_weight=0.5, centroid_loss=kind)
    loss = one.training_step(BATCH, 0)
    assert (loss - F.cross_entropy(X, BATCH.y)).item() == pytest.approx(0.5 * value, abs=1e-6)
    # d/da ‖a x − f‖² at a = 1 is 2 x·(x − f): 4 and 0.08
    loss.backward()
    plain = module()
    plain.training_step(BATCH, 0).backward()
    pull = one.net.scale.grad - plain.net.scale.grad
    assert float(pull) == pytest.approx(0.5 * 4.08 * (1 if kind == "sum" else 1 / 6), abs=1e-5)


def test_without_gradient_the_centroid_loss_changes_nothing() -> None:
    gradients = []
    for weight in (0.0, 3.0):
        one = module(centroid_weight=weight, centroid_loss="without_gradient")
        one.training_step(BATCH, 0).backward()
        gradients.append([p.grad.clone() for p in one.net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_entropy_is_a_mean_over_the_kept_samples() -> None:
    one = module(entropy_weight=0.8, forget_rate=0.3)
    p = X[:2].softmax(dim=1)
    entropy = -(p * p.log()).sum(dim=1).mean()
    assert torch.allclose(one.training_step(BATCH, 0), F.cross_entropy(X[:2], BATCH.y[:2]) + 0.8 * entropy)


def test_centroids_follow_the_kept_features() -> None:
    one = module(forget_rate=0.3)
    one.training_step(BATCH, 0)
    # class 0: mean (2, 0), cosine 1; class 1: mean (0.2, 1), cosine² = 1 / 1.04
    s = 1 / 1.04
    assert torch.allclose(one.centroids, torch.tensor([[2.0, 0.0], [0.2 * s, 1.0]]))
    assert not one.centroids.requires_grad


# Rounds


def test_a_client_starts_unknown_centroids_from_its_own_features() -> None:
    world = TinyWorld("clean")
    method = rofl(world, eval_augment=False)
    client = world.scenario.client(0, t=0, memory={}, labels=None, seed=0, device=CPU)
    weights = method.net.fresh(0)
    known = torch.full((4, 8), 7.0)
    known[1:3] = 0
    request = next(method.train(client, weights, known))
    x = torch.cat([batch.x for batch in client.scan()])
    with torch.no_grad():
        features = method.net.load(weights).features(x)
    own = torch.stack([features[client.data.y == c].mean(dim=0) for c in range(4)])
    assert torch.allclose(request.module.centroids[1:3], own[1:3], atol=1e-6)
    assert torch.equal(request.module.centroids[[0, 3]], known[[0, 3]])


def test_pseudo_labels_are_the_received_models_and_only_from_their_round_on() -> None:
    world = TinyWorld("noisy")
    method = rofl(world, pseudo_from=3, eval_augment=False)
    weights, known = method.net.fresh(0), torch.ones(4, 8)
    clients = [world.scenario.client(0, t=t, memory={}, labels=None, seed=0, device=CPU) for t in (2, 3)]
    before, after = (next(method.train(client, weights, known)).module.targets for client in clients)
    x = torch.cat([batch.x for batch in clients[0].scan()])
    assert torch.equal(before, clients[0].data.y)
    assert torch.equal(after, method.net.load(weights)(x).argmax(dim=1))
    assert not torch.equal(before, after)


@pytest.mark.parametrize("size", [1, 5, 512])
def test_the_size_of_a_forward_pass_changes_no_answer(size: int) -> None:
    world = TinyWorld()
    known = torch.ones(4, 8)
    client = world.scenario.client(0, t=9, memory={}, labels=None, seed=0, device=CPU)
    one, other = (rofl(world, eval_batch_size=n, eval_augment=False) for n in (size, 12))
    weights = one.net.fresh(0)
    left, right = (next(method.train(client, weights, known)).module.targets for method in (one, other))
    assert torch.equal(left, right)


def test_a_class_that_nobody_has_shown_stays_unknown() -> None:
    world = TinyWorld("single_class")  # client 1 observes class 0 only
    method = rofl(world)
    fed_rows = federate(method, Serial(world.scenario), world.public, budget=3, seed=0)
    state = next(fed_rows)[0].state
    assert state.centroids.shape == (4, 8)

    class Lonely(RoFL):
        def select(self, state: Any, fed: Any) -> list[int]:
            return [1]

    lonely = Lonely(**vars(method))
    (first, *_) = play(lonely, world, rounds=1, cohort=1)
    assert first.state.centroids[1:].abs().sum() == 0
    assert first.state.centroids[0].abs().sum() > 0


def test_clients_count_equally_or_by_their_samples() -> None:
    world = TinyWorld("one_sample")  # clients of 23, 1 and four times 12 samples
    law = RoFL.limit_laws[next(iter(RoFL.limit_laws))]
    fedavg = play(FedAvg(**world.shared(6)), world, rounds=2, cohort=6)[-1].state.weights
    by_samples, equally = (
        play(rofl(world, 6, weighting=weighting, **law), world, rounds=2, cohort=6)[-1].state.weights
        for weighting in ("samples", "uniform")
    )
    assert same(dict(by_samples), dict(fedavg))
    assert not same(dict(equally), dict(fedavg))


@pytest.mark.parametrize(
    "change",
    [
        {"forget_rate": 0.0},
        {"entropy_weight": 0.0},
        {"pseudo_from": 100},
        {"centroid_loss": "sum", "centroid_weight": 0.01},
        {"centroid_loss": "mean"},
    ],
    ids=lambda change: next(iter(change)) + str(next(iter(change.values()))),
)
def test_each_part_matters(change: dict[str, Any]) -> None:
    world = TinyWorld("noisy")
    start = {"pseudo_from": 1, "forget_ramp": 1}
    ours, other = (play(rofl(world, **{**start, **s}), world, rounds=3)[-1] for s in ({}, change))
    assert not same(dict(ours.state.weights), dict(other.state.weights))
    assert all_finite(other.state.weights)


def test_the_weight_of_a_loss_without_gradient_does_not_matter() -> None:
    world = TinyWorld("noisy")
    ours, other = (play(rofl(world, centroid_weight=w), world, rounds=3)[-1] for w in (1.0, 50.0))
    assert same(ours.state, other.state)


def test_a_run_tells_which_labels_it_trusted() -> None:
    world = TinyWorld("noisy")
    rows = list(federate(rofl(world, 6), Serial(world.scenario), world.public, budget=30, seed=0))
    first, last = rows[0][1], rows[-1][1]
    assert [ledger.records["stage"] for _, ledger in rows] == ["warm-up"] * 3 + ["pseudo-labels"] * 2
    assert all(trace.values["clean"].all() for trace in first.traces)  # nothing is forgotten in round 0
    trusted = torch.cat([trace.values["clean"] for trace in last.traces])
    assert 0 < int(trusted.sum()) < len(trusted)


def test_the_cost_is_that_of_fedavg_and_the_centroids() -> None:
    world = TinyWorld("balanced")
    ours, fedavg = (play(m, world, rounds=4)[-1].totals for m in (rofl(world), FedAvg(**world.shared())))
    assert ours.client_updates == fedavg.client_updates
    extra = 4 * 3 * 4 * 8 * 4  # rounds × clients × classes × features × bytes
    assert (ours.up_bytes - fedavg.up_bytes, ours.down_bytes - fedavg.down_bytes) == (extra, extra)


def test_a_network_without_features_is_refused() -> None:
    world = TinyWorld()
    settings = {name: value for name, value in vars(rofl(world)).items() if name != "net"}
    plain = Net.of(_plain, num_classes=4)
    with pytest.raises(UserError, match="features"):
        RoFL(net=plain, **settings)


def _plain(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, num_classes))


def test_clients_are_trained_one_at_a_time_by_the_vectorised_executor(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = TinyWorld("one_sample")
    method = rofl(world)
    assert canonical(play(method, world, rounds=5)) == canonical(
        play(method, world, rounds=5, executor=Vectorised(world.scenario))
    )
    assert "training_step of its own" in caplog.text


# The papers' settings


@pytest.mark.parametrize(
    ("dataset", "preset", "expected", "local"),
    [
        ("cifar10", "rofl_cifar10", (100, 10), (0.25, 10)),
        ("cifar100", "rofl_cifar100", (400, 10), (0.25, 10)),
        ("clothing1m", "rofl_clothing1m", (10, 10), (0.003, 16)),
        ("cifar10", "fedrn_tables/rofl_cifar10", (100, 100), (0.01, 50)),
        ("cifar100", "fedrn_tables/rofl_cifar100", (100, 100), (0.01, 50)),
        ("webvision_mini", "fedrn_tables/rofl_webvision_mini", (100, 100), (0.01, 50)),
        ("ich", "rofl_ich", (10, 10), (0.0003, 16)),
        ("isic2019", "rofl_isic2019", (10, 10), (0.0003, 16)),
    ],
)
def test_presets(dataset: str, preset: str, expected: tuple[int, int], local: tuple[float, int]) -> None:
    cfg = compose(["method=rofl", f"dataset={dataset}", f"preset={preset}"]).cfg
    assert cfg.protocol == "paper"
    assert (cfg.method.pseudo_from, cfg.method.forget_ramp) == expected
    assert (cfg.local.lr, cfg.local.batch_size) == local
    assert (cfg.method.centroid_weight, cfg.method.entropy_weight, cfg.method.forget_rate) == (1.0, 0.8, 0.2)
    assert cfg.method.centroid_loss == "without_gradient"


def test_the_form_with_a_gradient_differs_in_that_alone() -> None:
    plain, other = (subject(name).settings for name in ("rofl", "rofl_gradient"))
    differing = {name: other[name] for name in plain if plain[name] != other[name]}
    assert plain.keys() == other.keys()
    assert differing == {"centroid_loss": "mean"}
