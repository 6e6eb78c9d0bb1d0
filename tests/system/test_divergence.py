"""Divergence is an outcome: any method, any learning rate, with the step at which it happened."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, replace

import pytest
import torch

from fnll.errors import NotFiniteError, UserError
from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.federation import Snapshot, Totals
from fnll.harness.choices import options
from fnll.harness.divergence import HOPELESS, failed_over_numbers, hopeless_from
from fnll.harness.execute import execute, told
from fnll.harness.prepare import prepare
from fnll.harness.run_folder import DeclinedError
from fnll.local import Fit
from fnll.methods.fedavg import FedAvg
from fnll.report import load
from fnll.testing import Roundtrip, TinyWorld, play
from fnll.testing.worlds import tiny_local
from fnll.types import State, Update
from tiny import TINY, compose

WORLD = [*TINY, "rounds=8", "eval.overlap=false"]
RATES = (1, 5, 20, 100, 1e3, 1e6, 1e30)


def ended(store, *words):
    try:
        return execute(prepare(compose([*WORLD, f"runs_dir={store}", *words])))
    except DeclinedError:
        return execute(prepare(compose([*WORLD, f"runs_dir={store}", *words, "rounds=40"])))


def judge(summary):
    """A run is good in every respect, or it has diverged and says where."""
    scores = summary["test/loss"]
    if summary["diverged"]:
        assert summary["diverged_at"] >= 1
        assert scores["last"] is scores["last10"] is None
    else:
        assert math.isfinite(scores["last"])
        assert scores["last"] <= HOPELESS * math.log(4)


def test_fednoro_diverges_where_it_crashed(tmp_path):
    words = ("method=fednoro", "method.warmup=1", "method.ramp_rounds=1", "rounds=4")
    for rate in (5, 1e6, 1e30):
        judge(ended(tmp_path, *words, f"local.lr={rate}"))
    row = load(tmp_path).runs.sort_values("local.lr").iloc[-1]
    assert (row["status"], row["reason"]) == ("diverged", "diverged at step 1")


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(options("method")))
def test_every_method_diverges_or_ends_well(tmp_path, method):
    for rate in RATES:
        judge(ended(tmp_path, f"method={method}", f"local.lr={rate}"))


def rows(*losses):
    return [{"step": step, "test/loss": loss} for step, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    ("losses", "since"),
    [((1.0, 2.0), None), ((1.0, 1e17), 2), ((1e17, 1.0), None), ((1.0, None, 1e17, None), 2), ((), None), ((None,), 1),
     ((HOPELESS * math.log(4),), None), ((1e17, 1.0, 1e17), 3)],
)  # fmt: skip
def test_a_hopeless_loss_at_the_end_is_divergence_and_a_spike_is_none(losses, since):
    assert hopeless_from(rows(*losses), 4) == since


def test_a_failure_over_numbers_is_told_from_a_mistake():
    good, bad, vast = torch.ones(3), torch.tensor([1.0, math.nan]), torch.tensor([1e30])
    before = Snapshot(1, State({"w": good}), {}, Totals())
    wrong = Snapshot(1, State({"w": bad}), {}, Totals())
    diverged = failed_over_numbers
    assert diverged(NotFiniteError("weights"), before, [])
    assert diverged(OverflowError("math range error"), before, [])
    assert diverged(ValueError("sizes differ"), wrong, [])
    assert diverged(IndexError("x"), before, [Update(weights={"w": bad})])
    assert diverged(IndexError("x"), before, [Update(weights={"w": vast})])
    assert diverged(IndexError("x"), before, [Update(report={"loss": math.inf})])
    assert not diverged(ValueError("sizes differ"), before, [Update(weights={"w": good}, report={"n": 3})])
    for kind in (UserError, OSError, MemoryError, AttributeError):
        assert not diverged(kind("nan"), wrong, [])


@pytest.mark.parametrize(
    "error", [ValueError("Overflow when unpacking long long"), RuntimeError("probability tensor contains inf or nan")]
)
def test_what_an_error_says_does_not_count(error):
    @dataclass(frozen=True)
    class Facts(State):
        lid: torch.Tensor

    unknown = Facts({"w": torch.ones(3)}, torch.tensor([math.nan]))
    assert not failed_over_numbers(error, Snapshot(1, unknown, {}, Totals()), [Update(weights={"w": torch.ones(3)})])


class Fails(FedAvg):
    """Fails after its training with an error that says nothing about numbers."""

    def train(self, client, weights):
        yield Fit(self.module(client, weights=weights), client)
        raise IndexError("no such bin")


@pytest.mark.parametrize("executor", [Serial, Roundtrip, Vectorised])
def test_a_job_looks_at_its_numbers_where_it_fails(executor):
    world = TinyWorld()
    for rate, kind in ((0.1, IndexError), (1e30, NotFiniteError)):
        method = replace(Fails(**world.shared()), local=tiny_local(lr=rate))
        with pytest.raises(kind, match="no such bin") as caught:
            play(method, world, executor=executor(world.scenario))
        assert "round 0, job train" in told(caught.value)
        assert type(pickle.loads(pickle.dumps(caught.value))) is kind, "it comes home from another process as it is"
