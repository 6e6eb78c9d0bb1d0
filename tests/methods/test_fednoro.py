"""FedNoRo as a whole: its stages, its switches, its fallbacks and what it is when they are off."""

import functools
import logging
import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from fnll.errors import UserError
from fnll.executors import Serial
from fnll.federation import Executor, Ledger, Snapshot, federate
from fnll.harness.plain import plain
from fnll.methods import fednoro, fednoro_aggregation
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedla import FedLA
from fnll.methods.fednoro import Detected, FedNoRo
from fnll.system import notices
from fnll.testing import Recording, TinyWorld, play, same, subject_of

NAN = float("nan")


@pytest.fixture(autouse=True)
def _forget_what_was_said() -> None:
    notices.forget()
    fednoro_aggregation._say_once.cache_clear()


subject = functools.cache(subject_of)


def make(world: TinyWorld, name: str = "fednoro", **settings: Any) -> FedNoRo:
    method = subject(name).method(world, **settings)
    assert isinstance(method, FedNoRo)
    return method


def watch(method: Any, world: TinyWorld, rounds: int = 8, cohort: int = 3) -> list[tuple[Snapshot, Ledger]]:
    return list(federate(method, Serial(world.scenario), world.public, budget=rounds * cohort, seed=0))


def test_stages_detection_and_records() -> None:
    world = TinyWorld("noisy")
    rows = watch(make(world, warmup=12, ramp_begin=12), world, rounds=16)
    assert [ledger.records["stage"] for _, ledger in rows] == ["warm-up"] * 12 + ["robust"] * 4
    assert [snapshot.state.noisy for snapshot, _ in rows] == [None] * 12 + [frozenset({0, 1, 2})] * 4
    assert [i for i, (_, ledger) in enumerate(rows) if "noisy_clients" in ledger.records] == [12]
    facts = plain(rows[12][1].records)
    assert facts["noisy_clients"] == [0, 1, 2]
    assert [len(row) for row in facts["class_losses"]] == [4] * 6
    assert {min(column) for column in zip(*facts["indicator"], strict=True)} == {0}
    assert {max(column) for column in zip(*facts["indicator"], strict=True)} == {1}
    for _, ledger in rows[12:]:
        assert sum(ledger.records["agg_weights"].values()) == pytest.approx(1)
    assert rows[15][1].records["kd_weight"] == pytest.approx(0.8)


def test_everyone_is_asked_once_and_only_a_vector_is_sent() -> None:
    world = TinyWorld("noisy")
    executor = Recording(world.scenario)
    last = play(make(world), world, executor=executor)[-1]
    jobs = Counter(call.name for calls in executor.seen for call, _ in calls)
    assert jobs == {"train": 24, "probe": 6}
    assert [call.client for calls in executor.seen for call, _ in calls if call.name == "probe"] == list(range(6))
    reference = play(FedAvg(**world.shared()), world)[-1].totals
    model = reference.up_bytes // 24
    assert last.totals.client_updates == reference.client_updates
    assert last.totals.contacts == reference.contacts + 6
    assert last.totals.up_bytes == reference.up_bytes + 6 * 4 * 8  # four class losses each
    assert last.totals.down_bytes == reference.down_bytes + 6 * model + 15 * 8  # λ in five rounds


def forced(
    method: FedNoRo,
    world: TinyWorld,
    noisy: set[int],
    cohort: int = 3,
    rounds: int = 6,
    executor: Executor | None = None,
) -> list[tuple[Snapshot, Ledger]]:
    """A run that is past detection, with the noisy clients it is told."""
    state = Detected(method.net.fresh(0), noisy=frozenset(noisy))
    start = watch(FedAvg(**world.shared(cohort=cohort)), world, 1, cohort)[0][0]._replace(t=4, state=state)
    budget = (rounds + 1) * cohort
    executor = executor or Serial(world.scenario)
    rows = list(federate(method, executor, world.public, budget=budget, seed=0, resume=start))
    assert len(rows) >= rounds, "callers look at each of them"
    return rows


def test_distillation_goes_to_noisy_clients_only() -> None:
    world = TinyWorld("noisy")
    executor = Recording(world.scenario)
    method = make(world, ramp="official")
    forced(method, world, {1, 4}, executor=executor)
    sent = [(call.client, call.t, call.message["kd"]) for calls in executor.seen for call, _ in calls]
    assert {k for k, _, weight in sent if weight} == {1, 4}
    assert all(weight == (method.distillation(t) if k in {1, 4} else 0) for k, t, weight in sent)


def test_partial_participation_weighs_within_the_cohort() -> None:
    world = TinyWorld("noisy")
    kinds = set()
    for snapshot, ledger in forced(make(world, cohort=2), world, {0, 1, 2}, cohort=2, rounds=12):
        weights = ledger.records["agg_weights"]
        noisy = {k for k in weights if k in snapshot.state.noisy}
        kinds.add(len(noisy))
        if len(noisy) in (0, 2):  # all of one kind: FedAvg, and all clients are of one size here
            assert list(weights.values()) == [0.5, 0.5]
        else:
            (suspect,) = noisy
            assert weights[suspect] == pytest.approx(math.exp(-1) / (1 + math.exp(-1)))
    assert kinds == {0, 1, 2}


def test_full_participation_keeps_clean_clients_at_one_weight() -> None:
    world = TinyWorld("noisy")
    for _, ledger in forced(make(world, cohort=6), world, {0, 1, 2}, cohort=6):
        weights = ledger.records["agg_weights"]
        assert weights[3] == weights[4] == weights[5]
        assert all(weights[k] < weights[3] for k in (0, 1, 2))
        assert min(weights.values()) == pytest.approx(weights[3] * math.exp(-1))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("distance", "official"),
        ("distance", "none"),
        ("kd_weight", 0.0),
        ("temperature", 2.0),
        ("logit_adjustment", False),
        ("drop_noisy", True),
        ("ramp", "official"),
        ("ramp_rounds", 9),
    ],
)
def test_each_switch_of_stage_2_changes_the_run(setting: str, value: Any) -> None:
    world = TinyWorld("noisy")
    usual = forced(make(world), world, {0, 1, 2})[-1][0].state.weights
    changed = forced(make(world, **{setting: value}), world, {0, 1, 2})[-1][0].state.weights
    assert not same(dict(usual), dict(changed))


def test_kd_missing_matters_only_where_a_class_is_missing() -> None:
    def both(world: TinyWorld) -> list[dict[str, Tensor]]:
        forms = (make(world, kd_missing=form) for form in ("paper", "official"))
        return [dict(forced(method, world, {0, 1, 2})[-1][0].state.weights) for method in forms]

    paper, official = both(TinyWorld("balanced"))
    for name, value in paper.items():
        assert torch.allclose(value, official[name], atol=1e-6)
    assert not same(*both(TinyWorld("single_class")))


@pytest.mark.parametrize(
    "settings",
    [
        {"indicator": "confidence"},
        {"indicator": "lid"},
        {"per_class": False},
        {"normalise": False},
        {"indicator": "lid", "per_class": False, "normalise": False},
        {"covariance": "diag"},
        {"component": "official"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["noisy", "one_sample", "empty", "single_class"])
def test_every_form_of_detection_runs(kind: str, settings: dict[str, Any]) -> None:
    world = TinyWorld(kind)
    rows = watch(make(world, **settings), world, rounds=5)
    records = rows[3][1].records
    assert records["noisy_clients"] < set(range(6))
    rows_known = [row is not None for row in records["indicator"]]
    assert rows_known == [size > 0 for size in world.scenario.sizes]
    width = {len(row) for row in records["indicator"] if row is not None}
    assert width == ({4} if settings.get("per_class", True) else {1})


def test_a_class_nobody_has_and_one_in_which_all_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fednoro.class_means

    def told(losses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        return (
            real(losses, labels, num_classes).index_fill(0, torch.tensor([1]), NAN).index_fill(0, torch.tensor([2]), 5)
        )

    monkeypatch.setattr(fednoro, "class_means", told)
    world = TinyWorld("noisy")
    snapshot, ledger = watch(make(world), world, rounds=5)[3]
    facts = plain(ledger.records)
    assert [row[1:3] for row in facts["class_losses"]] == [[None, 5]] * 6
    assert [len(row) for row in facts["indicator"]] == [3] * 6  # class 1 is left out
    assert [row[1] for row in facts["indicator"]] == [0] * 6  # class 2 says nothing
    assert all(value.isfinite().all() for value in snapshot.state.weights.values())


def test_without_warm_up_the_first_round_is_robust() -> None:
    world = TinyWorld("noisy")
    rows = watch(make(world, warmup=0, ramp_begin=0), world, rounds=3)
    assert [ledger.records["stage"] for _, ledger in rows] == ["robust"] * 3
    assert ["noisy_clients" in ledger.records for _, ledger in rows] == [True, False, False]


def test_dropping_noisy_clients() -> None:
    world = TinyWorld("noisy")
    method = make(world, drop_noisy=True, cohort=6)
    for _, ledger in forced(method, world, {0, 2}, cohort=6, rounds=2):
        assert list(ledger.records["agg_weights"]) == [1, 3, 4, 5]


def test_dropping_everyone_drops_nobody_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    world = TinyWorld("noisy")
    for _, ledger in forced(make(world, drop_noisy=True), world, set(range(6))):
        assert len(ledger.records["agg_weights"]) == 3
    assert len([r for r in caplog.records if "drops none" in r.message]) == 1


@pytest.mark.parametrize(("found", "count"), [(frozenset(), 0), (frozenset(range(6)), 6)])
def test_one_sided_detection_is_said_once_and_aggregates_as_fedavg(
    found: frozenset[int], count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fednoro, "noisy_rows", lambda *_: found)
    world = TinyWorld("balanced")
    rows = watch(make(world), world)
    assert len([r for r in caplog.records if f"takes {count} of 6 clients for noisy" in r.message]) == 1
    for _, ledger in rows[3:]:
        assert list(ledger.records["agg_weights"].values()) == pytest.approx([1 / 3] * 3)


def test_a_warm_up_that_never_ends_is_said(caplog: pytest.LogCaptureFixture) -> None:
    world = TinyWorld("noisy")
    watch(make(world, warmup=8), world)
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        "method.warmup=8 leaves none of the 8 rounds to FedNoRo's stage 2"
    ]


# Limit laws


def weights_of(method: Any, world: TinyWorld) -> dict[str, Tensor]:
    return dict(play(method, world)[-1].state.weights)


def test_endless_warm_up_with_a_uniform_prior_is_fedavg() -> None:
    world = TinyWorld("balanced")
    assert same(weights_of(make(world, warmup=10**9), world), weights_of(FedAvg(**world.shared()), world))


def test_endless_warm_up_is_fedla() -> None:
    world = TinyWorld("noisy")
    assert same(weights_of(make(world, warmup=10**9), world), weights_of(FedLA(**world.shared()), world))
    assert not same(weights_of(make(world, warmup=10**9), world), weights_of(FedAvg(**world.shared()), world))


def test_no_noisy_client_is_fedla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fednoro, "noisy_rows", lambda *_: frozenset())
    world = TinyWorld("noisy")
    assert same(weights_of(make(world), world), weights_of(FedLA(**world.shared()), world))


def test_table_4s_first_row_is_fedla() -> None:
    world = TinyWorld("noisy")
    switched_off = make(world, kd_weight=0.0, distance="none")
    assert same(weights_of(switched_off, world), weights_of(FedLA(**world.shared()), world))


def test_everything_switched_off_is_fedavg() -> None:
    world = TinyWorld("noisy")
    switched_off = make(world, kd_weight=0.0, distance="none", logit_adjustment=False)
    assert same(weights_of(switched_off, world), weights_of(FedAvg(**world.shared()), world))


# Settings


def test_the_two_configs_differ_in_the_named_switches_only() -> None:
    paper, official = (subject(name).settings for name in ("fednoro", "fednoro_official"))
    changed = {key: (paper[key], official[key]) for key in paper if paper[key] != official[key]}
    assert paper.keys() == official.keys()
    assert changed == {
        "component": ("paper", "official"),
        "eval_augment": (False, True),
        "ramp": ("paper", "official"),
        "ramp_rounds": ("33%", "65%"),
        "kd_missing": ("paper", "official"),
        "distance": ("paper", "official"),
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup": -1}, "method.warmup must be a whole number of at least 0"),
        ({"warmup": 2.5}, "method.warmup"),
        ({"per_class": "maybe"}, "method.per_class must be true or false, got 'maybe'"),
        ({"ramp_rounds": -1}, "method.ramp_rounds"),
        ({"ramp_begin": -1}, "method.ramp_begin"),
        ({"kd_weight": 1.2}, r"method.kd_weight must be in \[0, 1\]"),
        ({"temperature": 0}, "method.temperature must be greater than 0"),
        ({"component": "papper"}, "method.component must be paper or official, got 'papper'; did you mean paper"),
        ({"ramp": "none"}, "method.ramp"),
        ({"kd_missing": "none"}, "method.kd_missing"),
        ({"indicator": "losses"}, "method.indicator must be one of loss, confidence, lid.*did you mean loss"),
        ({"covariance": "tied"}, "method.covariance must be full or diag"),
        ({"distance": "l2"}, "method.distance must be one of paper, official, none"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(TinyWorld(), **settings)
