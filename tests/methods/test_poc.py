"""Power-of-Choice: who is asked, who is chosen, how they are averaged, each setting alone, and the limit."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from driving import done

from fnll.errors import UserError
from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.federation import Federation
from fnll.harness.config import compose
from fnll.methods.fedavg import FedAvg
from fnll.methods.poc import PowerOfChoice, hardest
from fnll.testing import Recording, TinyWorld, play, same, subject_of
from fnll.types import CPU, Update

SETTINGS = dict(subject_of("poc").settings)
FEDAVG = {"candidates": 3, "candidate_odds": "uniform", "client_weights": "samples"}


def make(world, cohort=3, **settings):
    return PowerOfChoice(**{**world.shared(cohort), **SETTINGS, **settings})


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ((0.1, 0.9, 0.5, 0.7), [4, 9]),
        ((0.5, 0.5, 0.5, 0.5), [2, 4]),  # equal: lower numbers first
        ((0.1, float("nan"), 0.5, 0.7), [4, 9]),
        ((0.1, float("inf"), 0.5, 0.7), [4, 9]),
    ],
)
def test_the_hardest_are_chosen(losses, chosen):
    assert hardest([2, 4, 7, 9], losses, 2) == chosen


def test_fewer_candidates_than_places_are_all_chosen():
    assert hardest([5, 1], [0.2, 0.1], 3) == [1, 5]


def test_a_candidate_tells_the_mean_loss_of_its_labels_and_nothing_else():
    world = TinyWorld()
    method = make(world)
    client = world.scenario.client(0, t=0, memory={}, labels=None, seed=0, device=CPU)
    weights = method.net.fresh(0)
    (batch,) = client.scan()
    expected = F.cross_entropy(method.net.load(weights)(batch.x), batch.y)
    update = done(method.probe(client, weights))
    assert update.report == {"loss": pytest.approx(expected.item(), abs=1e-6)}
    assert update.weights is None
    corrected = done(method.probe(client.with_labels((client.data.y + 1) % 4), weights))
    assert corrected.report != update.report, "corrected labels count"


def test_who_trains_had_the_largest_loss_and_every_candidate_is_paid_for():
    world = TinyWorld()
    executor = Recording(world.scenario)
    history = play(make(world, candidates=5), world, rounds=3, executor=executor)
    assert [len(seen) for seen in executor.seen] == [5, 3] * 3
    for asked, trained in zip(executor.seen[::2], executor.seen[1::2], strict=True):
        losses = {call.client: update.report["loss"] for call, update in asked}
        chosen = {call.client for call, _ in trained}
        assert chosen < losses.keys()
        assert min(losses[k] for k in chosen) >= max(losses[k] for k in losses.keys() - chosen)
    totals = history[-1].totals
    assert (totals.contacts, totals.client_updates) == (24, 9), "a candidate's answer is no client update"
    size = sum(value.numel() * 4 for value in history[-1].state.weights.values())
    assert totals.down_bytes == 24 * size
    assert totals.up_bytes == 9 * size + 15 * 8, "one number from each candidate"


def test_candidates_are_drawn_by_size_unless_told():
    world = TinyWorld("one_sample")  # client 1 has one of 72 samples
    asked = {"samples": 0, "uniform": 0}
    for odds in asked:
        method = make(world, cohort=1, candidates=2, candidate_odds=odds)
        for seed in range(60):
            executor = Recording(world.scenario)
            fed = Federation(world.public, executor, budget=24, seed=seed, t=1)
            method.select(method.init(fed), fed)
            asked[odds] += 1 in [call.client for call, _ in executor.seen[0]]
    # expected shares: 2 of 6 (20 of 60), and about 2 of 72 (2 of 60)
    assert asked["uniform"] > 10
    assert asked["samples"] < 7


def test_the_mean_of_models_ignores_sample_counts_unless_told():
    world = TinyWorld()
    parts = enumerate([(1.0, 1), (4.0, 2)])
    updates = [Update({"w": torch.tensor([value])}, client=k, size=n) for k, (value, n) in parts]
    means = [make(world, client_weights=w).aggregate(None, updates, None)["w"].item() for w in ("equal", "samples")]
    assert means == [2.5, 3]


def test_the_first_round_may_go_without_asking():
    world = TinyWorld()
    for first_round, expected in (("ask", [5, 3, 5, 3]), ("uniform", [3, 5, 3])):
        executor = Recording(world.scenario)
        play(make(world, candidates=5, first_round=first_round), world, rounds=2, executor=executor)
        assert [len(seen) for seen in executor.seen] == expected
    (trained, *_) = executor.seen
    reference = Federation(world.public, Serial(world.scenario), budget=6, seed=0, t=0).sample(3)
    assert [call.client for call, _ in trained] == reference, "the cohort of every method"


def test_more_candidates_than_clients_are_all_of_them():
    world = TinyWorld("empty")  # client 1 has no samples
    executor = Recording(world.scenario)
    play(make(world, candidates=30), world, rounds=1, executor=executor)
    assert [call.client for call, _ in executor.seen[0]] == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["noisy", "one_sample", "empty"])
def test_with_d_equal_to_m_and_fedavgs_odds_and_weights_it_is_fedavg(kind):
    world = TinyWorld(kind)
    ours, reference = (play(m, world)[-1] for m in (make(world, **FEDAVG), FedAvg(**world.shared())))
    assert same(dict(ours.state.weights), dict(reference.state.weights))
    assert ours.totals.client_updates == reference.totals.client_updates


@pytest.mark.parametrize("change", [{"candidates": 4}, {"candidate_odds": "samples"}, {"client_weights": "equal"}])
def test_each_setting_alone_makes_it_something_else(change):
    world = TinyWorld("one_sample")
    ours = play(make(world, **{**FEDAVG, **change}), world)[-1]
    assert not same(dict(ours.state.weights), dict(play(FedAvg(**world.shared()), world)[-1].state.weights))


def test_constant_losses_choose_by_number():
    world = TinyWorld()
    method = make(world, candidates=6)
    blank = {name: torch.zeros_like(value) for name, value in method.net.fresh(0).items()}  # every loss is log 4
    fed = Federation(world.public, Serial(world.scenario), budget=24, seed=0, t=0)
    assert method.select(replace(method.init(fed), weights=blank), fed) == [0, 1, 2]


def test_close_to_serial_when_vectorised():
    world = TinyWorld("one_sample")
    method, fast = make(world, candidates=5), Vectorised(world.scenario)
    plain, quick = (play(method, world, rounds=4, executor=e)[-1].state.weights for e in (None, fast))
    assert max(float((plain[name] - quick[name]).abs().max()) for name in plain) < 2e-3


def test_too_few_candidates_are_refused():
    with pytest.raises(UserError, match=r"method\.candidates must be at least the 3 clients of a round, got 2"):
        make(TinyWorld(), candidates=2)


@pytest.mark.parametrize(("dataset", "clients"), [("cifar10", 100), ("cifar100", 50)])
def test_presets(dataset, clients):
    cfg = compose(["method=poc", f"dataset={dataset}", f"preset=poc_{dataset}"]).cfg
    assert (cfg.protocol, cfg.num_clients, cfg.rounds, cfg.local.lr) == ("paper", clients, 1000, 0.01)
    found = cfg.method
    assert (found.candidates, found.candidate_odds, found.client_weights) == (30, "samples", "equal")
