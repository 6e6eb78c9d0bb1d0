"""Every method that has a YAML, against every rule of a fair comparison."""

from functools import cache

import pytest
from omegaconf import OmegaConf

from fnll.executors import Pool
from fnll.harness.choices import options
from fnll.testing import CHECKS, TinyWorld, play, run_check, same, subject_of

METHODS = sorted(options("method"))
USUAL = ("fedavg", "fedcorr", "fedrn")  # a job of one training, several stages, memories; the others in `make test-all`


subject = cache(subject_of)
results = {}  # by config and check: the oracles are FedAvg in other scenarios, which is one method here


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", METHODS)
def test_contract(name, check):
    key = OmegaConf.to_yaml(subject(name).node), check
    if key not in results:
        results[key] = run_check(subject(name), CHECKS[check])
    result = results[key]
    if result.outcome == "excused":
        pytest.xfail(result.detail)
    assert result.outcome in ("passed", "unstated"), result.detail


@pytest.fixture(scope="module")
def pool(fork_server):
    world = TinyWorld()
    with Pool(world.scenario, workers=2) as workers:
        yield world, workers


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in METHODS]
)
def test_real_processes_give_the_same_run(name, pool):
    world, workers = pool
    assert same(subject(name).plain_run, play(subject(name).method(world), world, executor=workers))
