"""Counting models and passes: exact where it can be known, and nothing of it stays behind."""

from __future__ import annotations

import pytest
import torch

from fnll.bench.passes import WORLD, Counts, count, counting, value
from fnll.bench.subjects import run_of
from fnll.models import mlp
from fnll.models.network import Network
from fnll.published import table

SMALL = [*WORLD, "dataset.samples=80", "num_clients=4", "local.epochs=2", "model=mlp", "model.hidden=[4]"]


def test_fedavg_sends_one_model_each_way_and_passes_once_per_epoch() -> None:
    assert count(run_of([*SMALL, "method=fedavg"])) == {"down": 1.0, "up": 1.0, "forward": 2.0, "backward": 2.0}


def test_fedrn_receives_its_neighbours_and_asks_them() -> None:
    found = count(run_of([*SMALL, "method=fedrn", "method.warmup=2", "method.k=2"]))
    assert found["down"] == pytest.approx(3.0, abs=0.05)
    assert found["up"] == pytest.approx(1.0, abs=0.05)  # and its answer to the noise image
    assert 2 < found["backward"] <= 2 + 2  # two heads for an epoch, then two epochs of what it selects
    assert found["forward"] - found["backward"] == pytest.approx(3 + 1, abs=0.1)  # three models vote, and its accuracy


def test_coteaching_moves_two_models_and_trains_both() -> None:
    found = count(run_of([*SMALL, "method=coteaching"]))
    assert (found["down"], found["up"]) == (2.0, 2.0)
    assert 2 < found["backward"] <= 2 * 2  # two networks, each on what the other keeps
    assert found["forward"] == 2 * 2 + 1  # and once to say which samples it takes for clean


def test_jointopt_costs_what_fedavg_costs() -> None:
    assert count(run_of([*SMALL, "method=jointopt"])) == {"down": 1.0, "up": 1.0, "forward": 2.0, "backward": 2.0}


def test_counting_leaves_networks_as_they_were() -> None:
    plain = Network.forward, Network.features
    counts, net = Counts(), mlp(hidden=(3,), num_classes=2, input_shape=(1, 2, 2))
    with counting(counts):
        net(torch.zeros(5, 1, 2, 2)).sum().backward()
        with torch.no_grad():
            net.head(net.features(torch.zeros(3, 1, 2, 2)))
    net(torch.zeros(7, 1, 2, 2)).sum().backward()
    assert (counts.forward, counts.backward) == (8, 5)
    assert (Network.forward, Network.features) == plain


def test_formulas_are_those_of_the_table() -> None:
    letters = {"E": 5.0, "k": 2.0, "m": 2.0}
    found = {(r.row, r.column): value(r, letters) for r in table("fedrn_table10").records}
    assert found["FedRN", "forward"] == 10
    assert found["FedRN", "backward"] == 7
    assert found["FedRN", "down"] == 3
    assert found["DivideMix", "forward"] == 50
    assert found["Co-teaching", "backward"] == 10
    (fedrn,) = (r for r in table("fedrn_table10").records if (r.row, r.column) == ("FedRN", "down"))
    assert value(fedrn, {"E": 5.0}) is None
