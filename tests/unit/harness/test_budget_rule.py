"""Budgets of rounds: a round with fewer clients than it asked for counts as a whole one."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from fnll.errors import UserError
from fnll.executors import Serial
from fnll.federation import federate
from fnll.harness.execute import execute
from fnll.harness.identity import settings
from fnll.harness.prepare import prepare
from fnll.methods.fedavg import FedAvg
from fnll.testing import TinyWorld
from tiny import compose

WORLD = TinyWorld()


@dataclass(frozen=True, kw_only=True)
class Two(FedAvg):
    """Two rounds of everybody, one client alone that nobody sampled, and then rounds among two clients."""

    def select(self, state, fed):
        if fed.t == 2:
            return [0]
        return fed.sample(self.cohort_size, among=None if fed.t < 2 else [0, 1])


def rounds(whole_round: int | None, resume_at: int | None = None) -> list[int]:
    """Client updates after each round, with a budget of six rounds of three."""
    method, executor = Two(**WORLD.shared()), Serial(WORLD.scenario)
    options = {"budget": 18, "seed": 0, "whole_round": whole_round}
    seen = [snapshot for snapshot, _ in federate(method, executor, WORLD.public, **options)]
    if resume_at is not None:
        again = federate(method, executor, WORLD.public, resume=seen[resume_at], **options)
        seen = seen[: resume_at + 1] + [snapshot for snapshot, _ in again]
    return [snapshot.totals.client_updates for snapshot in seen]


def test_updates_are_counted_as_they_are():
    assert rounds(None) == [3, 6, 7, 9, 11, 13, 15, 17, 19]


def test_short_rounds_count_as_whole_ones():
    """3 + 3 + 1, and then rounds that count 3 each: 10, 13, 16, 19 of 18."""
    assert rounds(3) == [3, 6, 7, 9, 11, 13, 15]
    assert rounds(3, resume_at=4) == rounds(3)


def test_the_rule_is_part_of_a_run_only_where_it_is_not_the_old_one():
    plain, counted = compose([]), compose(["budget=rounds"])
    assert "budget" not in settings(plain)
    assert settings(counted)["budget"] == "rounds"
    with pytest.raises(UserError, match="budget must be updates or rounds, got 'round'"):
        prepare(compose(["budget=round"]))


def test_fednoro_without_noisy_clients_has_as_many_rounds_as_with_them(tmp_path):
    """D7 of the catalogue: 90 rounds of stage 2, not what the missing clients leave."""
    words = ["method=fednoro", "method.warmup=1", "method.drop_noisy=true", "method.kd_weight=0", "fraction=1"]
    words += ["dataset=synthetic", "dataset.samples=80", "dataset.test_samples=10", "dataset.size=4", "model=mlp"]
    words += ["num_clients=8", "rounds=4", "local.epochs=1", "noise.rho=0.5", "device=cpu", f"runs_dir={tmp_path}"]
    words += ["diagnostics_every=0", "eval.overlap=false", "method.covariance=diag"]

    def last(rule):
        experiment = prepare(compose([*words, f"budget={rule}"]))
        execute(experiment)
        return json.loads((tmp_path / experiment.run_id / "metrics.jsonl").read_text().splitlines()[-1])

    assert last("updates")["comm/client_updates"] >= 32
    short = last("rounds")
    assert short["step"] == 4
    assert 8 < short["comm/client_updates"] < 32  # 8 in the warm-up, and three rounds of the clean clients
    assert (short["comm/client_updates"] - 8) % 3 == 0


def test_fedcorrs_last_stage_is_as_long_however_many_clients_are_clean(tmp_path):
    """D5 of the catalogue: 1 round's worth of stage 1, then T_2 = 2 and T_3 = 2 rounds, as FedNoRo counts them."""
    words = ["method=fedcorr", "method.passes=1", "method.finetune=2", "fraction=1", "num_clients=8", "rounds=5"]
    words += ["dataset=synthetic", "dataset.samples=160", "dataset.test_samples=10", "dataset.size=4", "model=mlp"]
    words += ["local.epochs=1", "noise.rho=0.5", "noise.tau=0.9", "device=cpu", f"runs_dir={tmp_path}"]
    words += ["diagnostics_every=0", "eval.overlap=false", "budget=rounds"]
    run = prepare(compose(words))
    execute(run)
    told = [json.loads(line) for line in (tmp_path / run.run_id / "diagnostics.jsonl").read_text().splitlines()]
    (clean,) = [fact["value"] for fact in told if fact["name"] == "clean_clients"]
    assert 0 < len(clean) < 8  # or the test says nothing
    last = json.loads((tmp_path / run.run_id / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 5
    assert last["comm/client_updates"] == 8 + 2 * len(clean) + 2 * 8
