"""Divergence is an outcome: any method, any learning rate, with the step at which it happened."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import TINY

from fnll.errors import UserError
from fnll.federation import Snapshot, Totals
from fnll.harness.config import compose, options
from fnll.harness.divergence import HOPELESS, failed_over_numbers, hopeless_from
from fnll.harness.execute import execute
from fnll.harness.folder import DeclinedError
from fnll.harness.prepare import prepare
from fnll.report import load
from fnll.types import State, Update

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
    good, bad = torch.ones(3), torch.tensor([1.0, math.nan])
    before = Snapshot(1, State({"w": good}), {}, Totals())
    wrong = Snapshot(1, State({"w": bad}), {}, Totals())
    told = failed_over_numbers
    assert told(ValueError("weights [nan, nan]"), before, [])
    assert told(RuntimeError("probability tensor contains either `inf`, `nan` or element < 0"), before, [])
    assert told(ValueError("sizes differ"), wrong, [])
    assert told(IndexError("x"), before, [Update(weights={"w": bad})])
    assert told(IndexError("x"), before, [Update(report={"loss": math.inf})])
    assert not told(ValueError("sizes differ"), before, [Update(weights={"w": good}, report={"n": 3})])
    for kind in (UserError, OSError, MemoryError, AttributeError):
        assert not told(kind("nan"), wrong, [])
    assert not told(ValueError("there is no finance department in banana"), before, [])
