"""SELFIE: uncertainty and choice by hand, each switch on its own, and what a client keeps and tells."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fnll.errors import UserError
from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.federation import Snapshot, federate
from fnll.harness.config import compose
from fnll.methods.fedavg import FedAvg
from fnll.methods.selfie import Notes, Refurbishing, Selfie, small_losses, uncertainty
from fnll.testing import TinyWorld, play, same, tiny_local
from fnll.types import Batch

SETTINGS: dict[str, Any] = {
    "noise_rate": 0.2, "threshold": 0.05, "history": 2, "warmup": 2, "restarts": 0, "history_update": "before_use",
    "short_history": "wait",
}  # fmt: skip


def made(world: TinyWorld, cohort: int = 3, **changes: Any) -> Selfie:
    return Selfie(**{**world.shared(cohort), **SETTINGS, **changes})


# Uncertainty


def history(*counts: int) -> Tensor:
    """One row with so many predictions of class 0, of class 1, ..."""
    return torch.cat([torch.full((count,), j) for j, count in enumerate(counts)])[None]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.float32, torch.float64])
def test_uncertainty_of_fifteen_predictions(dtype: torch.dtype) -> None:
    # 14 of one and 1 of another: −(14/15 ln 14/15 + 1/15 ln 1/15) = 0.244930, over ln 10 or ln 100
    rows = torch.cat([history(15), history(14, 1), history(13, 2)]).to(dtype)
    assert uncertainty(rows, 10).tolist() == pytest.approx([0, 0.106372, 0.170536], abs=1e-6)
    assert uncertainty(rows, 100).tolist() == pytest.approx([0, 0.053186, 0.085268], abs=1e-6)


def test_uncertainty_spans_0_to_1_and_does_not_mind_order() -> None:
    assert uncertainty(torch.tensor([[0, 1, 2, 3], [3, 1, 0, 2]]), 4).tolist() == pytest.approx([1, 1])
    assert uncertainty(torch.tensor([[0]]), 1).tolist() == [0]  # one class: nothing to be uncertain about
    assert uncertainty(torch.zeros(0, 15), 10).tolist() == []


def test_only_a_unanimous_history_of_fifteen_is_certain_enough() -> None:
    assert (uncertainty(torch.cat([history(15), history(14, 1)]), 100) <= 0.05).tolist() == [True, False]


# The choice


@pytest.mark.parametrize(
    ("size", "rate", "kept"),
    [(50, 0.2, 40), (5, 0.2, 4), (4, 0.2, 4), (1, 0.9, 1), (10, 0.9, 1), (10, 0.0, 10)],  # 3.2 samples are 4
)
def test_how_many_samples_count_as_clean(size: int, rate: float, kept: int) -> None:
    assert len(small_losses(torch.rand(size), rate)) == kept


def test_the_smallest_losses_come_first() -> None:
    assert small_losses(torch.tensor([0.9, 0.1, 2.0, 0.4]), 0.5).tolist() == [1, 3]


class Echo(nn.Module):
    """Answers with what it is shown."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def notes(given: list[int], predictions: list[list[int]], counts: int | None = None) -> Notes:
    labels, ring = torch.tensor(given), torch.tensor(predictions, dtype=torch.int16)
    return Notes(
        given=labels.clone(), labels=labels.clone(), refurbished=torch.zeros(len(labels), dtype=torch.bool),
        predictions=ring, counts=torch.full((len(labels),), ring.shape[1] if counts is None else counts),
        noise_rate=torch.tensor(0.5, dtype=torch.float64), run=0,
    )  # fmt: skip


def selected(kept: Notes, predicted: list[int], sure: list[float], **changes: Any) -> tuple[list[bool], list[int]]:
    """One step on all samples, whose logits are `sure` for the class `predicted` and 0 for the others."""
    method = made(TinyWorld(), **changes)
    logits = torch.zeros(len(predicted), 3)
    logits[torch.arange(len(predicted)), predicted] = torch.tensor(sure).float()
    module = Refurbishing(Echo(), tiny_local(), 0, method=method, notes=kept, correcting=True)
    index = torch.arange(len(predicted))
    keep, labels = module.selected(Batch((logits,), kept.given, index, 0, 0))
    assert module.trained.tolist() == keep.tolist()
    return keep.tolist(), labels.tolist()


def test_small_losses_and_refurbished_samples_are_trained_on() -> None:
    """Half of four count as clean: 0 and 1, predicted as labelled. Of the others, 2 was always class 2, 3 was not."""
    kept = notes([0, 1, 0, 0], [[0, 1], [1, 2], [2, 2], [0, 1]])
    assert selected(kept, [0, 1, 2, 2], [3, 2, 3, 3]) == ([True, True, True, False], [0, 1, 2, 0])
    assert kept.refurbished.tolist() == [False, False, True, False]
    assert kept.predictions.tolist() == [[0, 1], [1, 2], [2, 2], [2, 1]]  # the oldest is overwritten


def test_a_clean_sample_is_trained_on_with_its_refurbished_label() -> None:
    kept = notes([0, 1], [[1, 1], [1, 2]])
    assert selected(kept, [1, 1], [0.1, 0.0]) == ([True, True], [1, 1])


def test_once_refurbished_it_stays_so_until_it_is_refurbished_again() -> None:
    kept = notes([0, 0, 1, 1], [[2, 2], [0, 1], [1, 1], [1, 1]])
    selected(kept, [2, 0, 1, 1], [3, 3, 3, 3])
    assert selected(kept, [1, 0, 1, 1], [3, 3, 3, 3]) == ([True, True, True, True], [2, 0, 1, 1])  # uncertain: still 2
    assert selected(kept, [1, 0, 1, 1], [3, 3, 3, 3])[1] == [1, 0, 1, 1]  # certain again, and 1


def test_losses_are_those_of_the_given_labels() -> None:
    """Sample 0 is labelled 2 by now, and predicted so, but its given label keeps it out of the clean half."""
    kept = notes([0, 0, 1, 1], [[1, 0], [0, 1], [1, 0], [0, 1]])
    kept.labels[0] = 2
    assert selected(kept, [2, 0, 1, 2], [9, 3, 3, 3])[0] == [False, True, True, False]


def test_history_is_updated_before_or_after_it_is_used() -> None:
    before, after = (notes([0, 0], [[2, 1], [0, 0]], counts=3) for _ in range(2))  # the next slot is the second
    assert selected(before, [2, 0], [3, 3], history_update="before_use")[1] == [2, 0]
    assert selected(after, [2, 0], [3, 3], history_update="after_use")[1] == [0, 0]
    assert before.predictions.tolist() == after.predictions.tolist() == [[2, 2], [0, 0]]


def test_a_short_history_waits_or_is_of_class_zero() -> None:
    wait, zero = (notes([1, 1], [[0, 0], [0, 0]], counts=0) for _ in range(2))  # nothing was predicted yet
    assert selected(wait, [0, 2], [3, 3], short_history="wait")[1] == [1, 1]
    assert selected(zero, [0, 2], [3, 3], short_history="class_zero")[1] == [0, 1]
    assert selected(wait, [0, 2], [3, 3], short_history="wait")[1] == [0, 2]  # now there are two of each


def test_the_threshold_lets_less_certain_samples_pass() -> None:
    kept = notes([1, 1], [[0, 0, 0, 2], [0, 2, 0, 2]])
    # 3 : 1 has 0.562335 / ln 3 = 0.511860, 2 : 2 has 0.630930; the update makes 2 : 2 and 1 : 3 of them
    assert selected(kept, [2, 2], [3, 3], threshold=0.6, history=4)[1] == [1, 2]


# A run


def rows_of(method: Selfie, world: TinyWorld, rounds: int) -> list[tuple[Snapshot, Any]]:
    return list(federate(method, Serial(world.scenario), world.public, budget=rounds * method.cohort_size, seed=0))


def test_an_endless_warm_up_is_fedavg_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = TinyWorld()
    ours = play(made(world, warmup=100), world, rounds=4)
    theirs = play(FedAvg(**world.shared()), world, rounds=4)
    assert all(same(o.state.weights, t.state.weights) for o, t in zip(ours, theirs, strict=True))
    assert "warmup=100 covers all 4 rounds" in caplog.text


def test_the_warm_up_notes_and_the_rest_selects_and_relabels() -> None:
    world = TinyWorld()
    rows = rows_of(made(world, cohort=6), world, 4)
    assert [ledger.records["stage"] for _, ledger in rows] == ["warm-up"] * 2 + ["refurbishment"] * 2
    for done, (snapshot, ledger) in enumerate(rows):
        kept = snapshot.clients[0].memory
        assert kept["counts"].tolist() == [2 * (done + 1)] * 12  # two epochs a round
        assert (snapshot.clients[0].labels is None) == (done < 2)
        assert len(ledger.traces) == 6
        assert done >= 2 or all(trace.values["clean"].all() for trace in ledger.traces)
    kept, labels = rows[-1][0].clients[0].memory, rows[-1][0].clients[0].labels
    assert same(kept["given"], world.scenario.labels[world.scenario.shards[0]])
    assert kept["refurbished"][labels != kept["given"]].all()
    assert int(kept["refurbished"].sum()) > 0
    assert any(not trace.values["clean"].all() for trace in rows[-1][1].traces)


def test_it_mends_more_labels_than_it_spoils() -> None:
    world = TinyWorld()  # half of the labels of clients 0 to 2 are wrong
    last = play(made(world, cohort=6, warmup=4, history=6), world, rounds=10, cohort=6)[-1]
    assert world.truth.labels is not None
    before = after = 0
    for k, shard in enumerate(world.scenario.shards):
        before += int((world.scenario.labels[shard] != world.truth.labels[shard]).sum())
        after += int((last.clients[k].labels != world.truth.labels[shard]).sum())
    assert after < 2 / 3 * before


def test_a_restart_begins_anew_with_the_labels_made_so_far() -> None:
    world = TinyWorld()
    method = made(world, cohort=6, warmup=1, restarts=1)
    rows = rows_of(method, world, 6)
    assert [ledger.records["stage"] for _, ledger in rows] == ["warm-up", *["refurbishment"] * 2] * 2
    before, after = rows[2][0].clients[0], rows[3][0].clients[0]
    assert after.memory["counts"].tolist() == [2] * 12, "predictions of the first run are forgotten"
    assert same(before.labels, after.labels)
    assert same(before.memory["refurbished"], after.memory["refurbished"])
    left = 1 - float(before.memory["refurbished"].double().mean())
    assert float(after.memory["noise_rate"]) == pytest.approx(min(0.2, left))
    whole = rows_of(replace(method, restarts=0), world, 6)
    assert same(whole[2][0].state.weights, rows[2][0].state.weights)
    far, near = (apart(rows[i][0].state.weights, rows[2][0].state.weights) for i in (3, 1))
    assert far > near, "another initialisation is further away than a round of training"


def apart(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return float(sum((left[name] - right[name]).square().sum() for name in left))


def test_a_restart_never_raises_the_noise_rate() -> None:
    kept = replace(notes([0, 1, 2, 1], [[0, 0]] * 4), noise_rate=torch.tensor(0.2, dtype=torch.float64))
    assert float(kept.restarted(1).noise_rate) == 0.2
    kept.refurbished[:] = True
    assert float(kept.restarted(1).noise_rate) == 0
    assert (kept.restarted(2).run, kept.restarted(1).counts.tolist()) == (2, [0] * 4)


def test_labels_that_another_method_has_corrected_are_the_given_ones() -> None:
    world = TinyWorld()
    corrected = torch.arange(12) % 4
    client = world.scenario.client(0, t=0, memory={}, labels=corrected, seed=1, device=torch.device("cpu"))
    assert Notes.of(client, 2, 0.2).given.tolist() == corrected.tolist()


def test_each_client_trains_alone_and_the_same_under_the_vectorised_executor(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = TinyWorld("one_sample")
    method = made(world, cohort=6)
    plain = play(method, world, rounds=4, cohort=6)
    fast = play(method, world, rounds=4, cohort=6, executor=Vectorised(world.scenario))
    assert same(plain, fast)
    assert "training_step of its own" in caplog.text


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"noise_rate": 1.0}, "at least 0 and less than 1"),
        ({"history": 0}, "at least 1"),
        ({"history_update": "later"}, "before_use or after_use"),
    ],
)
def test_settings_are_checked(setting: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        made(TinyWorld(), **setting)


@pytest.mark.parametrize(("data", "rounds"), [("cifar10", 500), ("cifar100", 1000), ("webvision_mini", 1000)])
def test_presets_are_fedrns(data: str, rounds: int) -> None:
    cfg = compose(["method=selfie", f"dataset={data}", "preset=paper"]).cfg
    assert (cfg.protocol, cfg.rounds, cfg.local.lr, cfg.local.batch_size) == ("paper", rounds, 0.01, 50)
    assert (cfg.method.noise_rate, cfg.method.threshold, cfg.method.history) == (0.2, 0.05, 15)
    assert (cfg.method.warmup, cfg.method.restarts) == (100, 0)
