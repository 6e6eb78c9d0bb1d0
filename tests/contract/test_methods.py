"""Every method that has a YAML, against every rule of a fair comparison."""

import pytest

from fnll.executors import Pool
from fnll.harness.choices import options
from fnll.testing import CHECKS, TinyWorld, play, run_check, same, subject_of

METHODS = sorted(options("method"))
USUAL = ("fedavg", "fedcorr", "fedrn")  # a job of one training, several stages, memories; the others in `make test-all`


@pytest.fixture(scope="module")
def subjects():
    return {name: subject_of(name) for name in METHODS}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", METHODS)
def test_contract(name, check, subjects):
    result = run_check(subjects[name], CHECKS[check])
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
def test_real_processes_give_the_same_run(name, subjects, pool):
    world, workers = pool
    assert same(subjects[name].plain_run, play(subjects[name].method(world), world, executor=workers))
