"""Jobs in every form: functions, generators, partials; under serial, across processes and vectorised; wrong ones."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.local import Fit
from fnll.methods.fedavg import FedAvg
from fnll.testing import Roundtrip, TinyWorld, play, same
from fnll.types import Update

WORLD = TinyWorld()


class Partially(FedAvg):
    """Sends its job as a partial, which is called by the name of the function inside."""

    def round(self, state, fed):
        job = partial(partial(self.train, weights=state.weights))
        updates = fed.map(job, self.select(state, fed))
        return replace(state, weights=self.aggregate(state, updates, fed))


class Twice(FedAvg):
    """Trains twice in one job and remembers the first result; a plain function asks for nothing."""

    def round(self, state, fed):
        cohort = self.select(state, fed)
        updates = fed.map(self.train, cohort, weights=state.weights)
        fed.map(self.count, cohort)
        return replace(state, weights=self.aggregate(state, updates, fed))

    def train(self, client, weights):
        module = self.module(client, weights=weights)
        first = yield Fit(module, client)
        second = yield Fit(module, client, ("again",))
        return Update(second.weights, memory={"first": first.weights}, trace={"clean": torch.ones(len(client)).bool()})

    def count(self, client):
        seen = client.memory.get("seen", torch.zeros((), dtype=torch.int64))
        return Update(memory={"seen": seen + 1})


@pytest.mark.parametrize("executor", [Serial, Roundtrip])
def test_a_partial_is_the_job_inside_it(executor):
    expected = play(FedAvg(**WORLD.shared()), WORLD)[-1]
    found = play(Partially(**WORLD.shared()), WORLD, executor=executor(WORLD.scenario))[-1]
    assert same(found.state, expected.state)  # the same seeds too, so the same name


def test_what_a_job_remembers_is_the_same_under_serial_and_vectorised():
    plain, fast = (
        play(Twice(**WORLD.shared(6)), WORLD, rounds=2, cohort=6, executor=executor(WORLD.scenario))[-1].clients
        for executor in (Serial, Vectorised)
    )
    assert plain.keys() == fast.keys()
    for k, kept in plain.items():
        assert kept.memory.keys() == fast[k].memory.keys() == {"first", "seen"}
        assert int(fast[k].memory["seen"]) == 2
        for name, value in kept.memory["first"].items():
            assert torch.allclose(value, fast[k].memory["first"][name], atol=1e-5)


def test_the_second_training_has_batches_of_its_own():
    one = play(FedAvg(**WORLD.shared(6)), WORLD, rounds=1, cohort=6)[-1]
    two = play(Twice(**WORLD.shared(6)), WORLD, rounds=1, cohort=6)[-1]
    first = [kept.memory["first"] for kept in two.clients.values()]
    assert not same(two.state.weights, one.state.weights)
    assert len(first) == 6


class YieldsSomething(FedAvg):
    def train(self, client, **message):
        yield self.module(client, **message)
        return Update()


class ReturnsNothing(FedAvg):
    def train(self, client, **message):
        yield Fit(self.module(client, **message), client)


@pytest.mark.parametrize("executor", [Serial, Vectorised])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (YieldsSomething, r"a job yields Fit\(module, client\), Predict or Split, got Classifier"),
        (ReturnsNothing, "a job returns an Update, got NoneType"),
    ],
)
def test_wrong_jobs_say_what_is_wrong_and_where(kind, message, executor):
    with pytest.raises(TypeError, match=message) as caught:
        play(kind(**WORLD.shared()), WORLD, executor=executor(WORLD.scenario))
    assert any("job train" in note for note in caught.value.__notes__)
