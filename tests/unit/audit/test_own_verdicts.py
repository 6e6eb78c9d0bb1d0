"""What a run says about samples and clients: tallies, the neutral verdict, scores, and the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fnll  # noqa: F401

# isort: split
import numpy as np
import pandas as pd
import pytest
import torch

from fnll.cli import main
from fnll.federation import Kept, Ledger, Trace
from fnll.harness.confident import Confident, confident, cross_validated, fold_of
from fnll.harness.detectors import client_scores, correction_scores, harm, in_words, precision_at, sample_scores
from fnll.harness.diagnostics import Round
from fnll.harness.execute import execute
from fnll.harness.prepare import prepare
from fnll.harness.tally import Tally, labels_now
from fnll.harness.verdict_files import replaced
from fnll.harness.verdicts import Verdict, doubt
from fnll.images import InMemory, Transform
from fnll.scenario.scenario import Scenario
from tiny import compose


def world() -> Scenario:
    """Two clients of three samples, two classes."""
    images = InMemory(torch.zeros(6, 1, 1, 1, dtype=torch.uint8))
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    shards = (torch.arange(3), torch.arange(3, 6))
    return Scenario(images, labels, shards, 2, Transform((0.0,), (1.0,)), "f", "f")


def told(client: int, *clean: int, **records) -> Round:
    trace = Trace(client, "train", {"clean": torch.tensor(clean, dtype=torch.bool)}, None)
    return Round(1, {}, Ledger(traces=[trace], records=records), {})


class TestTally:
    def test_shares_of_the_jobs_that_left_a_sample_out(self):
        tally = Tally(world())
        tally.add([told(0, 1, 1, 0), told(0, 1, 0, 0)])
        assert tally.suspicion({}).tolist() == [0.0, 0.5, 1.0, 0.0, 0.0, 0.0]

    def test_a_method_that_leaves_nothing_out_says_nothing(self):
        tally = Tally(world())
        tally.add([told(0, 1, 1, 1)])
        assert tally.suspicion({}) is None

    def test_changed_labels_count_as_wrong_and_soft_ones_say_how_sure(self):
        soft = {"usual/targets": torch.tensor([[0.3, 0.7], [0.9, 0.1], [0.6, 0.4]])}
        kept = {0: Kept(labels=torch.tensor([0, 0, 0])), 1: Kept(soft, torch.tensor([1, 0, 0]))}
        assert Tally(world()).suspicion(kept) == pytest.approx([0, 1, 0, 0.3, 0.1, 0.6])
        assert labels_now(world(), kept).tolist() == [0, 0, 0, 1, 0, 0]

    def test_what_the_server_said_last_counts_and_survives_a_checkpoint(self):
        tally = Tally(world())
        tally.add([told(0, 1, 0, 1, noisy_clients={1}, noise_levels=torch.tensor([0.1, 0.5]))])
        tally.add([told(1, 1, 1, 1, noisy_clients=[0], agg_weights={0: 0.25, 1: 0.75})])
        again = Tally(world(), tally.notes())
        for one in (tally, again):
            assert one.noisy == (0,)
            assert one.levels == pytest.approx([0.1, 0.5])
            assert one.shares == {0: (0.5, 1), 1: (1.5, 1)}
            assert one.rejected(0).tolist() == [0, 1, 0]
        assert Tally(world()).notes() == {}


class TestScores:
    def test_area_and_precision_by_hand(self):
        suspicion = np.array([0.9, 0.8, 0.7, 0.1, np.nan])
        scores = sample_scores(suspicion, np.array([True, False, True, False, True]))
        assert scores["find/auc"] == pytest.approx(3 / 4)
        assert scores["find/precision_10"] == 1.0, "at least one sample is at the top"
        assert sample_scores(suspicion, np.zeros(5, bool)) == {}

    def test_ties_count_as_in_random_order(self):
        assert sample_scores(np.zeros(4), np.array([1, 0, 0, 0]))["find/auc"] == 0.5
        assert precision_at(np.array([2.0, 1.0, 1.0, 0.0]), np.array([1, 1, 0, 0]), 50) == pytest.approx(0.75)

    def test_clients(self):
        scores = client_scores([0.1, 0.4, 0.2, np.nan], [True, True, False, True], [0.0, 0.5, 0.3, 0.0])
        assert scores["levels/error"] == pytest.approx(0.1)
        assert scores["levels/rank"] == pytest.approx(1.0)
        assert scores["find/accused"] == 1.0

    def test_corrections_on_reviewed_labels(self):
        observed, suggested, clean = np.array([0, 1, 2, 0]), np.array([1, 1, 0, 2]), np.array([1, 1, 2, -1])
        assert correction_scores(observed, suggested, clean) == {"reviewed": 3, "fixed": 1, "broken": 1}


class TestConfident:
    def test_a_confident_disagreement_is_an_issue(self):
        labels = np.array([0] * 10 + [2] * 10)
        probs = np.full((20, 3), 0.02)
        probs[np.arange(20), labels] = 0.96
        probs[3] = [0.02, 0.02, 0.96]
        found = confident(labels, probs)
        assert np.flatnonzero(found.issue).tolist() == [3]
        assert found.suggested[3] == 2
        assert found.wrong.argmax() == 3
        assert (found.suggested[found.issue == 0] == labels[found.issue == 0]).all()

    def test_one_class_has_no_issues(self):
        found = confident(np.zeros(4, int), np.ones((4, 1)))
        assert isinstance(found, Confident)
        assert not found.issue.any()

    def test_probes_never_see_the_sample_they_judge(self):
        rng = np.random.default_rng(0)
        labels = np.arange(60) % 2
        features = labels[:, None] * 4 + rng.normal(size=(60, 2))
        flipped = labels.copy()
        flipped[7] = 1 - flipped[7]
        probs = cross_validated(features, flipped, 3)
        assert probs[7, labels[7]] > 0.5, "a probe that had seen the wrong label might have learnt it"
        assert probs[:, 2].max() == 0, "a class that nobody has is never predicted"
        assert sorted(np.bincount(fold_of(labels, 5, 0))) == [12] * 5


def run_with(known: list[int] | None):
    truth = SimpleNamespace(labels=None, reviewed=None if known is None else torch.tensor(known))
    return SimpleNamespace(truth=truth, scenario=SimpleNamespace(called=lambda k: f"site {k}"))


def verdict(suggested: list[int]) -> Verdict:
    n = len(suggested)
    zeros = np.zeros(n)
    return Verdict("x", np.arange(n), np.zeros(n, int), np.zeros(n, int), np.array(suggested), zeros, zeros, zeros,
                   zeros[:1], zeros[:1] > 0, ("",))  # fmt: skip


class TestFlag:
    def test_more_harm_than_good_is_flagged(self):
        assert "fix 0 and break 1" in doubt(run_with([0, -1, 0]), verdict([1, 1, 0]))
        assert doubt(run_with([1, 1, 0]), verdict([1, 1, 0])) is None
        assert doubt(run_with(None), verdict([1, 1, 0])) is None, "nobody knows"


def test_a_clean_site_that_is_spoilt_is_named_even_if_the_whole_gets_better():
    """FedCorr on four sites: it fixed the noisy ones, and broke labels of a clean one."""
    owner = np.repeat([0, 1], 10)
    clean, observed = np.zeros(20, int), np.repeat([1, 0], 10)
    suggested = np.array([0] * 10 + [1] * 3 + [0] * 7)
    assert harm(observed, suggested, clean, owner) == [1]
    assert in_words([1], ["north", "south"].__getitem__) == "they would break more labels than they fix at south"
    assert harm(observed, np.array([0] * 10 + [1] + [0] * 9), clean, owner) == [], "one label is chance"
    assert in_words([], str) is None


def test_labels_are_replaced_and_everything_else_stays():
    frame = pd.DataFrame({"file": ["./a.png", "'=b.png"], "label": ["x", "y"], "note": ["1", "2"]})
    assert replaced(frame, {"a.png": "z", "=b.png": "w"})["label"].tolist() == ["z", "w"]
    assert replaced(frame, {})["note"].tolist() == ["1", "2"]
    arrays = pd.DataFrame({"x": ["1 2", "3 4"], "label": ["x", "y"]})
    assert replaced(arrays, {"3": "z"})["label"].tolist() == ["x", "z"], "rows of a CSV file count from 2"


def table(path: Path, reviewed: bool = False) -> Path:
    """Three sites of 30 bright and dark squares each; a third of `b`'s labels is wrong."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(90):
        true = i % 2
        client = "abc"[i % 3]
        wrong = client == "b" and i % 9 == 1
        pixels = np.clip(rng.normal(60 + 130 * true, 30, 16), 0, 255).astype(int)
        clean = ["dark", "=bright"][true] if reviewed else ""
        rows.append([" ".join(map(str, pixels)), ["dark", "=bright"][true ^ wrong], client, clean])
    frame = pd.DataFrame(rows, columns=["x", "label", "client", "clean_label"])
    (frame if reviewed else frame.drop(columns="clean_label")).to_csv(path, index=False)
    return path


def words(path: Path, method: str, *more: str) -> list[str]:
    return ["dataset=table", f"dataset.file={path}", "partition=given", "noise=native", "model=mlp", "rounds=6",
            f"method={method}", "fraction=1", "eval_every=2", "device=cpu", *more]  # fmt: skip


class Interrupting:
    """A watcher that stops a run at an evaluation."""

    def start(self, run, folder): ...

    def step(self, row, facts, rounds):
        if row["step"] >= 4:
            raise KeyboardInterrupt

    def finish(self, summary): ...

    def abort(self): ...


def test_a_run_writes_its_verdict_by_name_also_after_an_interruption(tmp_path, capsys):
    path = table(tmp_path / "t.csv")
    asked = words(path, "fedrn", f"runs_dir={tmp_path / 'whole'}")
    run = prepare(compose(asked))
    assert run.cfg.num_clients == 3
    execute(run)
    whole = tmp_path / "whole" / run.run_id
    clients = pd.read_csv(whole / "clients.csv")
    assert clients["client"].tolist() == ["a", "b", "c"]
    assert list(clients) == ["client", "size", "noise_level", "noisy", "evidence"]
    samples = pd.read_csv(whole / "samples.csv")
    assert list(samples) == ["file", "client", "label", "suggested", "p_wrong", "loss", "selected", "rank"]
    assert samples["rank"].tolist() == list(range(1, len(samples) + 1))
    assert set(samples["label"]) == {"dark", "'=bright"}, "no spreadsheet takes it for a formula"
    parts = prepare(compose([*asked, f"runs_dir={tmp_path / 'parts'}", "checkpoint_seconds=0", "eval.overlap=false"]))
    with pytest.raises(KeyboardInterrupt):
        execute(parts, [Interrupting()])
    execute(parts)
    again = tmp_path / "parts" / run.run_id
    assert (again / "samples.csv").read_bytes() == (whole / "samples.csv").read_bytes()

    assert main(["labels", str(whole), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "samples.csv").read_bytes() == (whole / "samples.csv").read_bytes()
    before, after = pd.read_csv(path), pd.read_csv(tmp_path / "out" / "labels.csv")
    assert list(after) == list(before)
    assert (after["x"] == before["x"]).all()
    assert "review some" in capsys.readouterr().out
    data = prepare(compose([*asked, f"dataset.file={tmp_path / 'out' / 'labels.csv'}"])).dataset
    assert data.class_names == ("=bright", "dark"), "the corrected table can be used again"


def test_harmful_corrections_are_not_written(tmp_path, capsys, monkeypatch):
    path = table(tmp_path / "t.csv", reviewed=True)
    run = prepare(compose(words(path, "fedavg", "rounds=1", f"runs_dir={tmp_path}")))
    assert run.truth.labels is not None
    execute(run)
    from fnll.harness import finished

    judge = finished.judge
    monkeypatch.setattr(finished, "judge", lambda *a: replace(v := judge(*a), suggested=1 - v.label))
    argv = ["labels", str(tmp_path / run.run_id), "--out", str(tmp_path / "out")]
    assert main(argv) == 1
    assert not (tmp_path / "out" / "labels.csv").exists()
    assert "and break" in capsys.readouterr().err
    assert main([*argv, "--anyway"]) == 0
    assert (tmp_path / "out" / "labels.csv").exists()


def test_data_that_changed_are_not_taken_for_the_runs(tmp_path, capsys):
    path = table(tmp_path / "t.csv")
    run = prepare(compose(words(path, "fedavg", "rounds=1", f"runs_dir={tmp_path}")))
    execute(run)
    path.write_text(path.read_text().replace("dark,a", "=bright,a", 1))
    assert main(["labels", str(tmp_path / run.run_id), "--out", str(tmp_path / "out")]) == 2
    assert "changed since" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
