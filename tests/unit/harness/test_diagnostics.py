"""Decisions scored against the truth, by hand."""

import json

import pytest
import torch
from torch import nn

from fnll.federation import Kept, Ledger, Trace
from fnll.harness.diagnostics import Diagnostics, Round, detection, precision_recall
from fnll.harness.plain import plain
from fnll.images import InMemory, Transform
from fnll.scenario.scenario import Scenario, Truth

CPU = torch.device("cpu")


def mask(*members, size=7):
    return torch.tensor([i in members for i in range(size)])


def test_label_precision_and_recall():
    assert precision_recall(mask(0, 1, 2, 3), mask(0, 1, 4, 5, 6)) == (0.5, 0.4)
    assert precision_recall(mask(), mask(0)) == (0.0, 0.0)


def test_detection():
    runs = [detection({2, 5, 7}, found) for found in ({2, 5, 7}, {2, 5}, {2, 5, 7, 8}, {1})]
    assert sum(run["detect/recall"] for run in runs) / 4 == pytest.approx(0.666667, abs=1e-6)
    assert sum(run["detect/precision"] for run in runs) / 4 == pytest.approx(0.6875)
    assert sum(run["detect/exact"] for run in runs) / 4 == 0.25
    assert detection({1}, set())["detect/precision"] == 0.0
    assert detection(set(), set()) == {f"detect/{k}": 1.0 for k in ("recall", "precision", "f1", "exact")}
    assert detection({1, 2}, {2, 3})["detect/f1"] == 0.5


def world():
    """Two clients of four samples; true labels 0 0 1 1 each; client 0 has two wrong ones."""
    true = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])
    observed = torch.tensor([1, 0, 0, 1, 0, 0, 1, 1])
    images = InMemory((true * 255).to(torch.uint8).view(-1, 1, 1, 1))
    scenario = Scenario(images, observed, (torch.arange(4), torch.arange(4, 8)), 2, Transform((0.0,), (1.0,)), "f", "f")
    levels = torch.tensor([0.5, 0.0])
    return Diagnostics(scenario, Truth(true, levels, levels, images, true), samples=10, device=CPU)


def done(ledger=None, before=None, after=None, t=1):
    """A round: what clients kept before and after it, and its ledger."""
    return Round(t, before or {}, ledger or Ledger(), after or {})


def relabelling(stage, *labels):
    """The ledger of a round in which client 0 took these labels."""
    return Ledger(traces=[Trace(0, "relabel", {}, torch.tensor(labels))], records={"stage": stage})


def test_correction_is_split_into_fixed_broken_and_left():
    clients = {0: Kept(labels=torch.tensor([0, 1, 0, 1])), 1: Kept()}  # fixes #0, breaks #1, leaves #2
    row = world().score([done(after=clients)])
    assert row == {"labels/fixed": 1 / 8, "labels/broken": 1 / 8, "labels/left": 1 / 8, "labels/noise": 2 / 8}
    assert world().score([done()]) == {}, "nothing to say before anything was corrected"


def test_selection_is_averaged_over_participations():
    ledger = Ledger(traces=[
        Trace(0, "train", {"clean": torch.tensor([True, True, False, False])}, None),  # 1 of 2 right, 1 of 2 found
        Trace(1, "train", {"clean": torch.tensor([True, True, True, False])}, None),  # 3 of 3, 3 of 4
        Trace(1, "probe", {}, None),
    ])  # fmt: skip
    assert world().score([done(ledger)]) == {"select/precision": 0.75, "select/recall": pytest.approx(0.625)}


def test_selection_is_judged_by_the_labels_of_that_moment():
    corrected = {0: Kept(labels=torch.tensor([0, 0, 1, 1]))}
    ledger = Ledger(traces=[Trace(0, "train", {"clean": torch.ones(4, dtype=torch.bool)}, None)])
    assert world().score([done(ledger, before=corrected)])["select/precision"] == 1.0
    assert world().score([done(ledger, after=corrected)])["select/precision"] == 0.5


def test_estimated_levels_are_compared_with_the_labels_they_were_made_from():
    now = {0: Kept(labels=torch.tensor([0, 0, 1, 1]))}
    row = world().score([done(Ledger(records={"noise_levels": [0.25, 0.25]}), after=now)])
    assert row["levels/error"] == pytest.approx(0.25)  # |.25 − .5|, |.25 − 0|
    assert row["levels/error_after"] == pytest.approx(0.25)  # |.25 − 0| twice
    row = world().score([done(Ledger(records={"noise_levels": [0.5, 0.0]}), after=now)])
    assert (row["levels/error"], row["levels/error_after"]) == (0.0, 0.25)


def test_what_later_rounds_of_a_window_correct_does_not_count_for_an_estimate():
    right = {0: Kept(labels=torch.tensor([0, 0, 1, 1]))}
    estimate = done(Ledger(records={"noise_levels": [0.5, 0.0]}))
    row = world().score([estimate, done(relabelling("late", 0, 0, 1, 1), after=right, t=2)])
    assert (row["levels/error"], row["levels/error_after"]) == (0.0, 0.0)
    assert row["labels/noise"] == 0.0  # but the labels are those of the window's end


def test_clients_without_an_estimate_are_left_out_of_its_error():
    row = world().score([done(Ledger(records={"noise_levels": [0.25, float("nan")]}))])
    assert row["levels/error"] == pytest.approx(0.25)


def test_detected_clients_are_scored():
    row = world().score([done(Ledger(records={"noisy_clients": [0]}))])
    assert row["detect/exact"] == 1.0


class Bright(nn.Module):
    """Answers the true class, which the pixel shows."""

    def forward(self, x):
        return torch.cat([1 - x.flatten(1), x.flatten(1)], 1)


def test_memorisation_asks_only_about_wrongly_labelled_images():
    assert world().probe.tolist() == [0, 2]
    assert world().memorisation(Bright()) == {"memory/wrong": 0.0, "memory/true": 1.0}


def test_facts_are_json_and_note_when_labels_changed():
    ledger = Ledger(
        traces=[Trace(0, "relabel", {}, torch.tensor([0, 0, 1, 1]))],
        records={"stage": "x", "lid": torch.tensor([1.5, float("nan")]), "noisy_clients": {1, 0}},
    )
    facts = world().facts([done(ledger, after={0: Kept(labels=torch.tensor([0, 0, 1, 1]))}, t=7)])
    assert [(fact["name"], fact["value"]) for fact in facts] == [
        ("lid", [1.5, None]),
        ("noisy_clients", [0, 1]),
        ("per_client_noise", [0.0, 0.0]),
        ("confusion", [[[2, 0], [0, 2]], [[2, 0], [0, 2]]]),
    ]
    assert {(fact["t"], fact["stage"]) for fact in facts} == {(7, "x")}
    json.dumps(facts)


def test_every_stage_of_a_window_leaves_its_labels():
    """Evaluation may be so rare that two stages end between two of them; figure 8 of FedCorr shows both."""
    half, whole = ({0: Kept(labels=torch.tensor(labels))} for labels in ([0, 0, 0, 1], [0, 0, 1, 1]))
    window = [
        done(relabelling("first", 1, 0, 0, 1), t=1),  # overtaken by the next round of the same stage
        done(relabelling("first", 0, 0, 0, 1), after=half, t=2),
        done(Ledger(records={"stage": "second"}), before=half, after=half, t=3),  # changes nothing
        done(relabelling("second", 0, 0, 1, 1), before=half, after=whole, t=4),
    ]
    told = [fact for fact in world().facts(window) if fact["name"] == "per_client_noise"]
    assert [(fact["t"], fact["stage"], fact["value"]) for fact in told] == [
        (2, "first", [0.25, 0.0]),
        (4, "second", [0.0, 0.0]),
    ]


def test_told_samples_are_counted_against_the_truth():
    trace = Trace(0, "train", {"clean": torch.tensor([False, False, True, True])}, None)  # wrong are #0 and #2
    facts = world().facts([done(Ledger(traces=[trace])), done(Ledger(traces=[trace]), t=2)])
    value = {"client": [0], "tp": [1], "fp": [1], "fn": [1], "tn": [1]}
    assert [(fact["t"], fact["name"], fact["value"]) for fact in facts] == [
        (1, "sample_detection", value),
        (2, "sample_detection", value),
    ]


def test_given_labels_can_be_noted():
    assert dict(world().labels({}))["per_client_noise"] == [0.5, 0.0]


def test_confusion_is_summed_where_one_per_client_would_be_too_much(monkeypatch):
    monkeypatch.setattr("fnll.harness.diagnostics.CONFUSION_ENTRIES", 7)
    assert world().confusion({}) == [[[3, 1], [1, 3]]]


def test_without_a_truth_nothing_is_scored():
    known = world()
    blind = Diagnostics(
        known.scenario,
        Truth(None, torch.zeros(2), torch.zeros(2), known.scenario.images, known.scenario.labels),
        samples=5,
        device=CPU,
    )
    assert blind.score([done(Ledger(records={"noisy_clients": [0]}))]) == {}
    assert blind.memorisation(Bright()) == {}
    assert blind.facts([done(Ledger(records={"lid": [1.0]}))]) == [
        {"t": 1, "stage": "train", "name": "lid", "value": [1.0]}
    ]


def test_plain():
    assert plain({"a": (1, float("inf")), 2: {3, 1}, "t": torch.tensor(2)}) == {"a": [1, None], "2": [1, 3], "t": 2}
