"""The round: what a method can ask for, what it gets back, and what it never sees."""

from dataclasses import dataclass

import pytest
import torch

from fnll.executors import Serial
from fnll.federation import Each, Federation, Ledger, Totals, World, federate
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedprox import FedProx
from fnll.testing import Backwards, Recording, TinyWorld, play, same
from fnll.types import State, Update

WORLD = TinyWorld()


def federation(t=0, clients=None, ledger=None, seed=0, sizes=None):
    public = WORLD.public if sizes is None else World(sizes, 4, (1, 4, 4))
    return Federation(public, Serial(WORLD.scenario), budget=24, seed=seed, t=t, clients=clients, ledger=ledger)


def echo(client, **message):
    return Update(report={name: float(value) for name, value in message.items()}, size=len(client))


def test_map_keeps_the_order_asked_for_and_hands_each_client_its_own():
    updates = federation().map(echo, [4, 1, 3], x=Each([40, 10, 30]), y=7)
    assert [u.client for u in updates] == [4, 1, 3]
    assert [u.report for u in updates] == [{"x": 40.0, "y": 7.0}, {"x": 10.0, "y": 7.0}, {"x": 30.0, "y": 7.0}]


def test_map_refuses_a_client_named_twice():
    with pytest.raises(ValueError, match="sent twice to one client"):
        federation().map(echo, [1, 1])


def seeds(client):
    return Update(report={"seed": float(client.seed % 2**40)})


def test_every_call_has_a_seed_of_its_own():
    fed = federation()
    found = [u.report["seed"] for _ in range(2) for u in fed.map(seeds, [0, 1, 2])]
    found += [u.report["seed"] for u in federation(t=1).map(seeds, [0, 1, 2])]
    assert len(set(found)) == 9
    assert found[:3] == [u.report["seed"] for u in federation().map(seeds, [2, 1, 0])][::-1]


def remember(client, value):
    return Update(memory={"seen": torch.tensor([value]), **{f"at{client.t}": torch.tensor([client.id])}})


def recall(client):
    return Update(report={name: float(value) for name, value in client.memory.items()})


def test_memory_is_merged_and_goes_back_to_its_client_only():
    clients = {}
    fed = federation(clients=clients)
    assert fed.map(remember, [0, 1], value=Each([5, 6]))[0].memory == {}, "the server never sees memory"
    federation(t=1, clients=clients).map(remember, [0], value=8)
    found = federation(t=2, clients=clients).map(recall, [0, 1, 2])
    assert [u.report for u in found] == [{"seen": 8.0, "at0": 0.0, "at1": 0.0}, {"seen": 6.0, "at0": 1.0}, {}]


def test_an_inner_method_has_memories_and_rounds_of_its_own():
    clients = {}
    fed = federation(t=7, clients=clients)
    inner = fed.sub("usual", start=5)
    assert inner.t == 2
    inner.map(remember, [0], value=1)
    assert fed.map(recall, [0])[0].report == {"usual/seen": 1.0, "usual/at2": 0.0}
    assert federation(t=8, clients=clients).sub("usual", start=5).map(recall, [0])[0].report == {
        "seen": 1.0,
        "at2": 0.0,
    }
    assert inner.seed("x") == fed.seed("x"), "randomness follows the run's clock, or stages would repeat each other"


def relabel(client):
    return Update(labels=torch.zeros(len(client), dtype=torch.int64))


def label_sum(client):
    return Update(report={"y": float(client.data.y.sum()), "observed": float(client.data.observed.sum())})


def test_corrected_labels_are_the_clients_labels_from_then_on():
    clients = {}
    fed = federation(clients=clients)
    before = fed.map(label_sum, [0])[0].report
    assert before["y"] == before["observed"] > 0
    assert fed.map(relabel, [0])[0].labels is None, "corrected labels are not the server's to see"
    assert fed.map(label_sum, [0])[0].report == {"y": 0.0, "observed": before["observed"]}
    assert federation(t=3, clients=clients).sub("x", 0).map(label_sum, [0])[0].report["y"] == 0.0


def test_sampling_is_repeatable_paired_and_never_twice_for_one_purpose():
    assert federation().sample(3) == federation().sample(3)
    assert len({tuple(federation(seed=seed).sample(3)) for seed in range(10)}) > 3, "each seed has cohorts of its own"
    assert len({tuple(federation(t=t).sample(3)) for t in range(10)}) > 3, "and each round"
    fed = federation()
    fed.sample(2)
    with pytest.raises(ValueError, match="'train' were sampled already"):
        fed.sample(2)
    assert len(fed.sample(2, purpose="probe")) == 2


def test_sampling_skips_empty_clients_and_caps_the_cohort():
    fed = federation(sizes=(3, 0, 5, 0, 1, 0))
    assert fed.inhabited == [0, 2, 4]
    assert fed.sample(10) == [0, 2, 4]
    assert federation(sizes=(3, 0, 5, 0, 1, 0)).sample(10, among=[1, 2, 3, 4]) == [2, 4]
    with pytest.raises(ValueError, match="selection came out empty"):
        federation(sizes=(3, 0)).sample(1, among=[1])


def test_sampling_follows_its_probabilities():
    counts = [federation(t=t).sample(1, p=[0, 0, 8, 0, 1, 1])[0] for t in range(300)]
    assert set(counts) <= {2, 4, 5}
    assert 200 < counts.count(2) < 280  # 240 expected; 40 is 5.8 standard deviations


def test_the_ledger_counts_bytes_and_updates():
    ledger = Ledger()
    fed = federation(ledger=ledger)
    weights = {"a": torch.zeros(10)}
    fed.map(send_back, [0, 1], weights=weights)
    fed.map(echo, [2], mu=0.5)
    assert ledger.totals == Totals(contacts=3, client_updates=2, up_bytes=2 * (40 + 8) + 8, down_bytes=2 * 40 + 8)


def send_back(client, weights):
    return Update(weights, report={"loss": 1.0}, memory={"big": torch.zeros(1000)})


def boom(client):
    raise KeyError("lost")


def test_a_jobs_error_says_where_it_happened():
    with pytest.raises(KeyError) as caught:
        federation(t=42).map(boom, [3])
    assert caught.value.__notes__ == ["client 3, round 42, job boom"]


@dataclass(frozen=True, kw_only=True)
class Greedy(FedAvg):
    """Uses twice the cohort each round."""

    def select(self, state, fed):
        return fed.sample(2 * self.cohort_size)


def test_the_budget_is_client_updates_whatever_a_round_is():
    snapshots = play(Greedy(**WORLD.shared(cohort=2)), WORLD, rounds=5, cohort=2)
    assert [s.totals.client_updates for s in snapshots] == [4, 8, 12]
    assert [s.totals.client_updates for s in play(FedAvg(**WORLD.shared(cohort=2)), WORLD, rounds=3, cohort=2)] == [
        2,
        4,
        6,
    ]


class Idle:
    def init(self, fed, weights=None):
        return State({})

    def round(self, state, fed):
        return state


def test_a_method_that_never_uploads_is_stopped():
    with pytest.raises(RuntimeError, match="uploaded no weights"):
        list(federate(Idle(), Serial(WORLD.scenario), WORLD.public, budget=5, seed=0))


@dataclass(frozen=True, kw_only=True)
class FailsOnce(FedAvg):
    """Its third round fails after the clients have answered."""

    def round(self, state, fed):
        fed.map(remember, [0], value=fed.t)
        new = super().round(state, fed)
        if fed.t == 2:
            raise OSError("power cut")
        return new


def test_a_failed_round_changes_nothing():
    method = FailsOnce(**WORLD.shared())
    good = []
    rounds = federate(method, Serial(WORLD.scenario), WORLD.public, budget=24, seed=0)
    with pytest.raises(OSError, match="power cut"):
        good.extend(snapshot for snapshot, _ in rounds)
    assert good[-1].t == 2
    assert good[-1].clients[0].memory["seen"].item() == 1


def test_methods_are_paired(monkeypatch):
    """Same initial weights, same cohorts, same batches under FedAvg and under a method with another loss."""
    batches = []

    def spy(self, net, batch, **message):
        batches[-1].append((batch.index, batch.x))
        return plain(self, net, batch, **message)

    plain = FedAvg.loss
    monkeypatch.setattr(FedAvg, "loss", spy)
    starts, cohorts, ends = [], [], []
    for method in (FedAvg(**WORLD.shared()), FedProx(**WORLD.shared(), mu=0.5, form="half_squared")):
        executor = Recording(WORLD.scenario)
        batches.append([])
        ends.append(play(method, WORLD, executor=executor)[-1].state)
        calls = [call for calls in executor.seen for call, _ in calls]
        starts.append(calls[0].message["weights"])
        cohorts.append([(call.t, call.client) for call in calls])
    assert same(*starts)
    assert cohorts[0] == cohorts[1]
    assert len(batches[0]) > len(cohorts[0]), "every client took a step"
    assert same(*batches)
    assert not same(*ends), "or they would be one method"


def test_the_order_in_which_clients_answer_does_not_matter():
    method = FedAvg(**WORLD.shared())
    assert same(play(method, WORLD), play(method, WORLD, executor=Backwards(WORLD.scenario)))


def test_nothing_public_on_fed_leads_to_data_memories_or_traces():
    public = {name for name in vars(federation()) if not name.startswith("_")}
    assert public == {"sizes", "num_classes", "input_shape", "t", "budget"}
