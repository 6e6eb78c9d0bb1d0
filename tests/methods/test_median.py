"""Median: values by hand, both definitions for an even count, and what it does to a federation."""

import pytest
import torch

from fnll.errors import UserError
from fnll.executors.vectorised import Vectorised
from fnll.harness.config import compose
from fnll.methods.fedavg import FedAvg
from fnll.methods.median import Median, coordinate_median
from fnll.testing import TinyWorld, play, same, subject_of
from fnll.types import State, Update


def scalars(*values):
    return [{"w": torch.tensor([value])} for value in values]


@pytest.mark.parametrize(
    ("even_count", "values", "expected"),
    [
        ("mean_of_middles", (100.0, 1.0, 4.0, 2.0), 3.0),  # (2 + 4) / 2
        ("lower_middle", (100.0, 1.0, 4.0, 2.0), 2.0),
        ("mean_of_middles", (5.0, 1.0, 100.0), 5.0),
        ("lower_middle", (5.0, 1.0, 100.0), 5.0),
        ("mean_of_middles", (7.0,), 7.0),
        ("lower_middle", (7.0,), 7.0),
    ],
)
def test_medians_by_hand(even_count, values, expected):
    assert coordinate_median(scalars(*values), even_count)["w"].item() == expected


@pytest.mark.parametrize("even_count", ["mean_of_middles", "lower_middle"])
def test_entry_by_entry_with_counters_truncated(even_count):
    states = [
        {"w": torch.tensor([1.0, 50.0]), "seen": torch.tensor(3)},
        {"w": torch.tensor([2.0, 6.0]), "seen": torch.tensor(4)},
    ]
    found = coordinate_median(states, even_count)
    assert found["w"].tolist() == ([1.5, 28.0] if even_count == "mean_of_middles" else [1.0, 6.0])
    assert found["seen"].item() == 3  # (3 + 4) / 2 truncated, or the smaller
    assert found["seen"].dtype == torch.int64


def test_sample_counts_do_not_matter_and_the_setting_does():
    world = TinyWorld()
    updates = [Update(s, client=k, size=10**k) for k, s in enumerate(scalars(1.0, 2.0, 4.0, 100.0))]
    for even_count, expected in (("mean_of_middles", 3.0), ("lower_middle", 2.0)):
        method = Median(**world.shared(), even_count=even_count)
        assert method.aggregate(State({}), updates, None)["w"].item() == expected


def test_a_minority_that_is_not_finite_does_no_harm():
    assert coordinate_median(scalars(1.0, float("nan"), 3.0, float("inf"), 2.0), "mean_of_middles")["w"].item() == 3.0


@pytest.mark.parametrize("cohort", [1, 2])
def test_one_client_a_round_or_two_of_equal_size_make_it_fedavg(cohort):
    world = TinyWorld("balanced")
    methods = (Median(**world.shared(cohort), even_count="mean_of_middles"), FedAvg(**world.shared(cohort)))
    ours, reference = (play(method, world, cohort=cohort)[-1] for method in methods)
    assert same(dict(ours.state.weights), dict(reference.state.weights))
    assert ours.totals == reference.totals


def test_three_clients_a_round_make_it_something_else():
    world = TinyWorld("balanced")
    methods = (Median(**world.shared(), even_count="mean_of_middles"), FedAvg(**world.shared()))
    ours, reference = (play(method, world)[-1] for method in methods)
    assert not same(dict(ours.state.weights), dict(reference.state.weights))


def test_close_to_serial_when_vectorised():
    world = TinyWorld("one_sample")
    method = subject_of("median").method(world, cohort=6)
    fast = Vectorised(world.scenario)
    plain, quick = (play(method, world, rounds=4, cohort=6, executor=e)[-1].state.weights for e in (None, fast))
    assert max(float((plain[name] - quick[name]).abs().max()) for name in plain) < 2e-3
    assert not fast.said, "everything was vectorised"


def test_an_unknown_definition_is_refused_by_name():
    with pytest.raises(UserError, match=r"method\.even_count must be mean_of_middles or lower_middle"):
        Median(**TinyWorld().shared(), even_count="upper_middle")


@pytest.mark.parametrize(("dataset", "clients"), [("cifar10", 100), ("cifar100", 50)])
def test_presets(dataset, clients):
    cfg = compose(["method=median", f"dataset={dataset}", f"preset=median_{dataset}"]).cfg
    assert (cfg.protocol, cfg.num_clients, cfg.rounds, cfg.local.lr) == ("paper", clients, 1000, 0.01)
    assert (cfg.local.momentum, cfg.local.weight_decay, cfg.local.batch_size) == (0.5, 0.0, 10)
    assert cfg.method.even_count == "mean_of_middles"
