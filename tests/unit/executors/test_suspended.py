"""Runs that wait at their requests: interleaved, each has the numbers it has alone."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fnll.executors import perform
from fnll.executors.suspended import Abandoned, Suspended
from fnll.methods.fedavg import FedAvg
from fnll.net import Net
from fnll.testing import TinyWorld, play, same, subject_of
from fnll.types import CPU


class Dropping(nn.Module):
    """A network that draws from the global generators while it trains."""

    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.head = nn.Linear(int(np.prod(input_shape)), num_classes)

    def forward(self, x):
        return self.head(nn.functional.dropout(x.flatten(1), 0.5, self.training))


class Gambling(FedAvg):
    """Draws on the server from the global generators, between two requests."""

    def round(self, state, fed):
        state = super().round(state, fed)
        noise = float(torch.rand(())) + random.random() + np.random.rand()
        weights = {name: value + 1e-3 * noise for name, value in state.weights.items()}
        return super().round(type(state)(weights), fed_again(fed))


def fed_again(fed):
    fed._asked.clear()
    return fed


def done(world, calls):
    return [perform(world.scenario, call, CPU) for call in calls]


def suspended(method, world, seed=0, **options):
    def body(executor):
        torch.manual_seed(seed)  # the run's own start of the global generators
        random.seed(seed)
        np.random.seed(seed)
        return play(method, world, executor=executor, seed=seed, **options)

    return Suspended(body)


def alone(run, world):
    calls = run.advance()
    while calls is not None:
        calls = run.advance(done(world, calls))
    return run.result


def gambling(world):
    net = Net.of(Dropping, num_classes=4, input_shape=world.scenario.input_shape)
    return Gambling(**{**world.shared(), "net": net})


@pytest.mark.parametrize("names", [("fedcorr", "fedrn"), ("fednoro", "fedavg")])
def test_two_runs_in_turns_give_the_numbers_of_each_alone(names):
    worlds = [TinyWorld("noisy"), TinyWorld("one_sample")]
    methods = [subject_of(name).method(world) for name, world in zip(names, worlds, strict=True)]
    expected = [play(method, world, seed=i) for i, (method, world) in enumerate(zip(methods, worlds, strict=True))]
    runs = [suspended(method, world, seed=i) for i, (method, world) in enumerate(zip(methods, worlds, strict=True))]
    waiting = {i: run.advance() for i, run in enumerate(runs)}
    turns = 0
    while waiting:
        for i in sorted(waiting, key=lambda i: (turns + i) % 2):  # now one first, now the other
            calls = runs[i].advance(done(worlds[i], waiting.pop(i)))
            if calls is not None:
                waiting[i] = calls
        turns += 1
    assert turns > 4
    assert all(same(run.result, want) for run, want in zip(runs, expected, strict=True))


def test_the_global_generators_are_each_runs_own():
    world = TinyWorld()
    expected = [alone(suspended(gambling(world), world, seed=seed), world) for seed in (0, 1)]
    assert not same(*expected)
    runs = [suspended(gambling(world), world, seed=seed) for seed in (0, 1)]
    waiting = [run.advance() for run in runs]
    while waiting[0] is not None:
        torch.rand(7), random.random(), np.random.rand()  # whoever drives the runs may draw too
        waiting = [run.advance(done(world, calls)) for run, calls in zip(runs, waiting, strict=True)]
    assert all(same(run.result, want) for run, want in zip(runs, expected, strict=True))


def test_a_failing_run_leaves_the_other_alone():
    world = TinyWorld()
    method = FedAvg(**world.shared())
    bad, good = suspended(method, world), suspended(method, world)
    first = good.advance()
    bad.advance()
    with pytest.raises(ArithmeticError, match="client 3"):
        bad.advance(ArithmeticError("client 3"))
    calls = good.advance(done(world, first))
    while calls is not None:
        calls = good.advance(done(world, calls))
    assert same(good.result, play(method, world))


def test_a_run_given_up_cleans_up_and_its_thread_ends():
    world, ended = TinyWorld(), []

    def body(executor):
        try:
            return play(FedAvg(**world.shared()), world, executor=executor)
        except Abandoned:
            ended.append(True)
            raise

    run = Suspended(partial(body))
    run.advance()
    run.close()
    assert ended == [True]
    assert not run._thread.is_alive()
    with pytest.raises(RuntimeError, match="not over"):
        _ = run.result
