"""The audit: plans, the joint verdict, and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fnll  # noqa: F401

# isort: split
import numpy as np
import pandas as pd
import pytest
import torch

from fnll.audit import plan as plans
from fnll.audit.joint import Joint, best
from fnll.audit.page import page, thumbnail
from fnll.audit.panel import Member, confident_member, member
from fnll.audit.plan import Plan, data_words, fixed, quoted
from fnll.cli import main
from fnll.errors import UserError
from fnll.harness.config import compose
from fnll.harness.verdicts import METHOD, Verdict
from fnll.images import InMemory, Transform
from fnll.scenario.scenario import OBSERVED, Dataset, Scenario, Truth

EVIL = '=cmd|"<script>alert(1)</script>'


def run(reviewed: list[int] | None = None) -> SimpleNamespace:
    """Two clients of three samples, two classes, with names that no page should trust."""
    images = InMemory(torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 1, 2, 2).contiguous())
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    names = (EVIL, "south")
    transform = Transform((0.0,), (1.0,))
    known = None if reviewed is None else torch.tensor(reviewed)
    shards = (torch.arange(3), torch.arange(3, 6))
    dataset = Dataset(
        "own", images, labels, images, labels, 2, transform, native_noise=True, class_names=("a", EVIL),
        owners=torch.tensor([0, 0, 0, 1, 1, 1]), client_names=names, names=tuple(f"{EVIL}{i}" for i in range(6)),
        reviewed=known, test_truth=OBSERVED,
    )  # fmt: skip
    scenario = Scenario(images, labels, shards, 2, transform, "f", "f", "own", names)
    nan = torch.full((2,), torch.nan)
    truth = Truth(None, nan, nan, images, labels, reviewed=known, test_truth=OBSERVED)
    return SimpleNamespace(dataset=dataset, scenario=scenario, truth=truth)


def one(name: str, p_wrong: list[float], levels: list[float], suggested: list[int] | None = None, **more) -> Member:
    told = np.array(suggested if suggested is not None else [0, 1, 0, 1, 0, 1])
    facts = {"held_out": np.array([0.5, 0.7]), "judges_samples": True, **more}
    levels = np.array([levels, levels])
    return Member(name, np.array(p_wrong), told, np.full(6, np.nan), levels, (levels[0] > 0.1).astype(float), **facts)


PANEL = (
    one("confident learning", [0.9, 0.2, 0.1, 0.1, 0.3, 0.0], [0.4, 0.0], [1, 1, 0, 1, 0, 1]),
    one("fedrn", [0.7, 0.6, 0.1, 0.1, 0.1, np.nan], [0.6, 0.1], [1, 0, 0, 1, 0, 1], held_out=np.array([0.9, 0.9])),
    one("fednoro", [1.0] * 6, [0.5, 0.9], judges_samples=False),
)
PLAN = Plan(("fedavg", "fedrn"), {"fedcorr": f"too few {EVIL}"}, 2, 10, 0, ("model=mlp",), 60.0)


class TestJoint:
    def test_samples_by_the_mean_of_those_who_judge_them(self):
        joint = Joint(run(), PANEL)
        assert joint.p_wrong == pytest.approx([0.8, 0.4, 0.1, 0.1, 0.2, 0.0])
        assert joint.order.tolist() == [0, 1, 4, 2, 3, 5]
        assert joint.suggested.tolist() == [1, 1, 0, 1, 0, 1], "only what is likely wrong gets a suggestion"
        assert joint.votes.tolist() == [2, 1, 0, 0, 0, 0]

    def test_clients_by_the_median_of_all(self):
        joint = Joint(run(), PANEL)
        assert joint.levels[0] == pytest.approx([0.5, 0.1])
        assert joint.noisy(0)
        assert not joint.noisy(1), "one member alone accuses nobody"
        level, low, high = replace(joint, members=(one("x", [0.0] * 6, [0.2, 0.0]),)).interval(0)
        assert (level, low, high) == (pytest.approx(0.2), pytest.approx(0.2), pytest.approx(0.2))

    def test_tables_are_guarded(self):
        joint = Joint(run(), PANEL)
        clients, samples = joint.clients_table(), joint.samples_table()
        assert clients["client"][0] == f"'{EVIL}"
        assert samples["file"][0] == f"'{EVIL}0"
        assert samples["suggested"][0] == f"'{EVIL}"
        assert list(clients) == ["client", "size", "noise_level", "low", "high", "noisy", "evidence"]
        assert clients["size"].tolist() == [3, 3]

    def test_reviewed_labels_judge_the_suggestions(self):
        assert Joint(run(), PANEL).reviewed() is None
        assert Joint(run([0, -1, -1, 1, -1, -1]), PANEL).reviewed() == {"reviewed": 2, "fixed": 0, "broken": 1}
        assert "0 of 1 reviewed" in Joint(run([0, -1, -1, -1, -1, -1]), PANEL).evidence(0)

    def test_models_that_know_too_little_are_no_witnesses(self):
        assert Joint(run(), PANEL).weakness() is None, "the best member agrees with 90 %"
        poor = Joint(run(), (one("x", [0.5] * 6, [0.4, 0.4], held_out=np.array([0.5, 0.6])),))
        assert "agrees with 55%" in poor.weakness()

    def test_the_best_and_who_cannot_be_told_from_it(self):
        noisy = one("x", [0.0] * 6, [0.0, 0.0], held_out=np.array([0.2, 1.2]))
        top, alike = best([*PANEL, noisy])
        assert top.name == "fedrn"
        assert "x" in alike


class TestPanel:
    def test_a_member_is_the_mean_over_the_folds_that_saw_the_sample(self):
        def verdict(index, p, levels):
            n = len(index)
            flat = np.zeros(n)
            zero, one, told = flat.astype(int), np.ones(n, int), np.array(levels)
            return Verdict(
                METHOD, np.array(index), zero, zero, one, np.array(p), flat, flat, told, told > 0.1, ("", "")
            )

        first = SimpleNamespace(run=run(), verdict=verdict([0, 1], [0.9, 0.2], [0.4, 0.0]), accuracy=0.5)
        second = SimpleNamespace(run=run(), verdict=verdict([0, 3], [0.7, 0.6], [0.2, 0.0]), accuracy=0.7)
        found = member("fedrn", [first, second])
        assert found.p_wrong[[0, 1, 3]] == pytest.approx([0.8, 0.2, 0.6])
        assert np.isnan(found.p_wrong[2])
        assert found.suggested.tolist() == [1, 1, 0, 1, 0, 1]
        assert found.noisy.tolist() == [1.0, 0.0]

    def test_confident_learning_judges_every_fold_by_others(self):
        sure = np.array([[0.01, 0.99]] * 3)
        right = np.array([[0.01, 0.99], [0.99, 0.01], [0.01, 0.99]])
        first = SimpleNamespace(run=run(), held=np.array([3, 4, 5]), probs=right, accuracy=1.0)
        second = SimpleNamespace(run=run(), held=np.array([0, 1, 2]), probs=sure, accuracy=0.0)
        found = confident_member([first, second])
        assert found.p_wrong[0] > 0.9 > found.p_wrong[1]
        assert found.levels.shape == (2, 2)
        assert np.isnan(found.levels[0, 0]), "nobody of the first client was held out there"


class TestPage:
    def test_nothing_is_fetched_and_nothing_trusted(self):
        text = page(Joint(run(), PANEL), PLAN, [f"beware {EVIL}"], "fnll audit")
        assert "<script>alert" not in text
        assert text.count("<script>") == 1
        assert "http://" not in text
        assert "https://" not in text
        assert "default-src 'none'" in text
        assert text.count("<li data-client") == 6
        assert text.count("data:image/png") == 6

    def test_worse_detectors_are_told(self, monkeypatch):
        known = {"area": {"confident learning": [0.96, 0.96, 3], "fedrn": [0.9, 0.95, 2]}}
        monkeypatch.setattr("fnll.audit.page.evidence", lambda: known)
        assert "worse than confident learning&#39;s 0.950" in page(Joint(run(), PANEL), PLAN, [], "")

    def test_thumbnails_are_small(self):
        large = np.random.default_rng(0).integers(0, 255, (3, 400, 200)).astype(np.uint8)
        assert len(thumbnail(large)) < 30_000
        assert thumbnail(np.zeros((1, 8, 8), np.uint8)).startswith("data:image/png;base64,")


def table(path: Path, sites: int = 3) -> Path:
    rng = np.random.default_rng(0)
    rows = []
    for i in range(120):
        true = i % 2
        pixels = np.clip(rng.normal(60 + 130 * true, 30, 16), 0, 255).astype(int)
        wrong = i % sites == 1 and rng.random() < 0.4
        rows.append([" ".join(map(str, pixels)), "ab"[true ^ wrong], f"site {i % sites}"])
    pd.DataFrame(rows, columns=["x", "label", "client"]).to_csv(path, index=False)
    return path


class TestPlan:
    def test_few_clients_rule_methods_out_before_anything_runs(self, tmp_path, monkeypatch):
        monkeypatch.setattr(plans, "_seconds_per_sample", lambda run: 1e-6)
        found = fixed(data_words(table(tmp_path / "t.csv"), None, (), None), 30, 0)
        assert (found.folds, found.rounds) == plans.LADDER[0]
        assert found.methods == ("fedavg", "fedrn")
        assert "3 are too few" in found.left_out["fedcorr"]

    @pytest.mark.slow
    def test_less_time_means_a_coarser_plan_and_no_time_is_said(self, tmp_path, monkeypatch):
        data = data_words(table(tmp_path / "t.csv", 12), None, (), None)
        monkeypatch.setattr(plans, "_seconds_per_sample", lambda run: 2e-3)
        quick = fixed(data, 4, 0)
        assert quick.estimate <= 4 * 60 * plans.SHARE
        assert (quick.folds, quick.rounds) != plans.LADDER[0]
        monkeypatch.setattr(plans, "_seconds_per_sample", lambda run: 10.0)
        with pytest.raises(UserError, match="even the quickest plan"):
            fixed(data, 4, 0)

    def test_a_plan_comes_back_and_says_everything_but_where_the_data_are(self, tmp_path):
        (tmp_path / "plan.json").write_text(PLAN.to_json())
        again = plans.read(tmp_path / "plan.json")
        assert again == PLAN
        assert "dataset.fold=2/2" in again.words_for(["dataset=table"], "fedrn", 2)
        (tmp_path / "plan.json").write_text("{}")
        with pytest.raises(UserError, match="no plan of an audit"):
            plans.read(tmp_path / "plan.json")

    @pytest.mark.parametrize("name", ["a b.csv", "it's.csv", "a,b=[c].csv", "ü$x.csv"])
    def test_any_file_name_can_be_said(self, name):
        assert compose(["dataset=table", f"dataset.file={quoted(name)}"]).cfg.dataset.file == name
        with pytest.raises(UserError, match="rename the file"):
            quoted("${x}.csv")


@pytest.mark.slow
def test_an_audit_from_table_to_page_and_again(tmp_path, capsys):
    path = table(tmp_path / "my sites.csv")
    before = path.read_bytes()
    plan = Plan(("fedavg", "fedrn"), {"fedcorr": "too few"}, 2, 6, 0, ("model=mlp", "fraction=1", "eval_every=100",
                "diagnostics_every=0", "device=cpu", "local.epochs=2"), 60.0)  # fmt: skip
    (tmp_path / "plan.json").write_text(plan.to_json())
    argv = ["audit", str(path), "--plan", str(tmp_path / "plan.json"), "--out"]
    assert main([*argv, str(tmp_path / "one")]) == 0
    said = capsys.readouterr().out
    assert "fedcorr is left out: too few" in said
    assert "site 1" in said
    assert said.count("nobody knows the true labels") == 1, "of the data, not of every run"
    assert main([*argv, str(tmp_path / "two")]) == 0
    for name in ("clients.csv", "samples.csv", "audit.html", "plan.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert path.read_bytes() == before, "an audit changes nothing"
    clients = pd.read_csv(tmp_path / "one" / "clients.csv").set_index("client")
    assert clients["noise_level"].idxmax() == "site 1"
    samples = pd.read_csv(tmp_path / "one" / "samples.csv")
    assert len(samples) == 120, "held-out samples are judged, too"
    assert json.loads((tmp_path / "one" / "plan.json").read_text())["methods"] == ["fedavg", "fedrn"]


def test_a_wrong_table_writes_nothing(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("file,label\n../x.png,a\n")
    assert main(["audit", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "row 2, column file leaves" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
