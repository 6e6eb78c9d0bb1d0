"""Clean labels and the test set cannot be reached from what a method or a job is given, by any chain of references."""

import functools
import gc
import pickle
import types
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fnll.federation import federate
from fnll.harness.config import compose
from fnll.harness.execute import execute
from fnll.harness.prepare import Run, prepare
from fnll.methods.fedavg import FedAvg
from fnll.testing import Recording

WORDS = ["num_clients=4", "rounds=1", "local.epochs=1", "model=mlp", "dataset.subset=100", "eval.overlap=false"]
ELSEWHERE = (types.ModuleType, type, types.FrameType)  # a program's code reaches everything; a method's values must not


def reachable(*roots: object) -> list[object]:
    """Every object that a chain of references leads to: attributes, items, closures, bound arguments, caches."""
    seen: dict[int, object] = {}
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, ELSEWHERE):
            continue
        seen[id(value)] = value
        if isinstance(value, types.FunctionType):
            waiting += [value.__closure__, value.__defaults__, value.__kwdefaults__]
        elif isinstance(value, Tensor):
            waiting += [value._base, value.grad, vars(value)]
        else:
            waiting += gc.get_referents(value)
    return list(seen.values())


def secrets(one: Run, found: list[object]) -> set[str]:
    """What of the truth is among `found`, as a tensor, as an array, or inside the storage of either."""
    labels, test = one.truth.labels.numpy().tobytes(), one.truth.test.pixels.numpy().tobytes()
    held = [bytes(value.untyped_storage()) for value in found if isinstance(value, Tensor)]
    held += [value.tobytes() for value in found if isinstance(value, np.ndarray) and value.dtype != object]
    names = {"clean labels": labels, "test images": test, "test labels": one.truth.test_labels.numpy().tobytes()}
    return {name for name, secret in names.items() if any(secret in content for content in held)}


@dataclass(frozen=True, kw_only=True)
class Curious(FedAvg):
    """Hands out everything it is given."""

    found: list

    def round(self, state, fed):
        self.found.append((self, state, fed))
        return super().round(state, fed)

    def train(self, client, **message):
        self.found.append((client, message))
        return super().train(client, **message)


@pytest.fixture(scope="module")
def one() -> Run:
    run = prepare(compose([*WORDS, "noise.rho=1", "noise.tau=0.5"]))
    assert not torch.equal(run.scenario.labels, run.truth.labels)
    return run


def curious(one: Run) -> Curious:
    return Curious(net=one.net, local=one.method.local, cohort_size=one.cohort_size, found=[])


def test_the_search_finds_the_truth_where_it_is(one):
    everything = {"clean labels", "test images", "test labels"}
    hidden = functools.partial(lambda x, y: x, y={"deep": [one.truth]})
    assert secrets(one, reachable(one)) == everything
    assert secrets(one, reachable(hidden)) == everything
    assert secrets(one, reachable((lambda: one.truth,))) == everything
    assert secrets(one, reachable(torch.cat([one.truth.labels, one.truth.labels])[:3])) == {"clean labels"}


def test_method_server_and_jobs_cannot_reach_it(one):
    method = curious(one)
    executor = Recording(one.scenario)
    list(federate(method, executor, one.world, budget=one.budget, seed=0))
    assert len(method.found) == 1 + one.cohort_size
    assert secrets(one, reachable(method.found, executor)) == set()


def test_neither_can_a_worker_that_gets_the_scenario_by_pickle(one):
    assert secrets(one, reachable(pickle.loads(pickle.dumps(one.scenario)))) == set()


def test_nor_a_method_in_a_whole_run_with_its_evaluator(one, tmp_path):
    one.cfg.runs_dir = str(tmp_path)
    method = curious(one)
    run = replace(one)  # without what `one` has cached
    object.__setattr__(run, "method", method)
    execute(run)
    assert secrets(one, reachable(method.found)) == set()
