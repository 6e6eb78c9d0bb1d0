"""A directory of runs as frames: what is read, how rows and columns are named, what becomes of damaged folders."""

import json

import pytest
import yaml

from fnll.errors import UserError
from fnll.harness.integrity import seal
from fnll.harness.run_folder import FORMAT, RunFolder
from fnll.report import load
from fnll.report.folders import flatten
from fnll.testing.store import write_run


def only(frame):
    assert len(frame) == 1
    return frame.iloc[0]


def test_one_run_is_one_row_with_its_provenance(tmp_path):
    run_id = write_run(tmp_path, "fedcorr", [0.5, 0.6], seed=3, manifest={"commit": "abc", "numbers": 7})
    row = only(load(tmp_path).runs)
    assert (row["run_id"], row["method"], row["seed"], row["status"]) == (run_id, "fedcorr", 3, "finished")
    assert (row["commit"], row["numbers"], row["protocol"], row["clients"]) == ("abc", 7, "shared", 20)
    assert row["privileges"] == ("clients upload one LID score per pass",)


def test_metrics_are_tidy_and_keep_the_order_of_the_grid(tmp_path):
    write_run(tmp_path, "fedavg", [0.5, 0.6, 0.7], config={"noise.rho": 0.8})
    write_run(tmp_path, "fedavg", [0.4, 0.5, 0.6], config={"noise.rho": 0.4})
    metrics = load(tmp_path).metrics
    assert list(metrics["cell"].cat.categories) == ["ρ=0.4", "ρ=0.8"]
    assert metrics[metrics["cell"] == "ρ=0.8"]["test/accuracy"].tolist() == [0.5, 0.6, 0.7]
    assert metrics["comm/bytes"].tolist() == (metrics["comm/up_bytes"] + metrics["comm/down_bytes"]).tolist()


def test_only_the_version_of_a_plugin_that_was_run_last_is_shown(tmp_path):
    for seed in range(3):
        old = write_run(tmp_path, "mine", [0.1], seed=seed, manifest={"code": {"mine": "aaa"}, "started": "2026-01-01"})
        (tmp_path / old).rename(tmp_path / f"mine-old-{seed}")
        write_run(tmp_path, "fedavg", [0.5], seed=seed, manifest={"started": "2026-01-03"})
    elsewhere = {"noise.rho": 0.9}  # where only the old version was run: no column for that
    write_run(tmp_path, "mine", [0.1], config=elsewhere, manifest={"code": {"mine": "aaa"}, "started": "2026-01-01"})
    late = {"code": {"mine": "bbb"}, "started": "2026-01-02"}
    new = write_run(tmp_path, "mine", [0.9], seed=0, manifest=late, ending="failed")
    store = load(tmp_path)
    assert store.runs.loc[store.runs["method"] == "mine", "run_id"].tolist() == [new]
    assert len(store.runs) == 4
    assert len(store.cells) == 1
    assert "4 runs of other versions of mine are not shown" in " ".join(store.notes)


@pytest.mark.parametrize(
    ("ending", "note", "status", "reason"),
    [
        ("finished", "", "finished", ""),
        ("diverged", "", "diverged", "diverged at step 2"),
        ("failed", "RuntimeError: no memory", "failed", "RuntimeError: no memory"),
        ("declined", "needs two clients", "declined", "needs two clients"),
        ("unfinished", "", "unfinished", "at evaluation 2 of 60 rounds"),
    ],
)
def test_every_ending_has_a_status_and_a_reason(tmp_path, ending, note, status, reason):
    write_run(tmp_path, "fedavg", [0.1, 0.2], ending=ending, note=note, config={"rounds": 60})
    row = only(load(tmp_path).runs)
    assert (row["status"], row["reason"]) == (status, reason)


@pytest.mark.parametrize("ending", ["finished", "diverged", "failed", "declined", "unfinished"])
def test_a_run_from_before_formats_is_listed_like_others(tmp_path, ending):
    run_id = write_run(tmp_path, "fedavg", [0.1, 0.2], ending=ending, note="why", config={"rounds": 60})
    new = load(tmp_path)
    manifest = tmp_path / run_id / "manifest.json"
    manifest.write_text(json.dumps({k: v for k, v in json.loads(manifest.read_text()).items() if k != "format"}))
    if (summary := tmp_path / run_id / "summary.json").exists():
        said = json.loads(summary.read_text())
        summary.write_text(json.dumps({k: v for k, v in said.items() if k not in ("files", "checksum")}))
    old = load(tmp_path)
    assert only(old.runs)["status"] == only(new.runs)["status"] == ending
    done = ending in ("finished", "diverged")
    assert old.notes == (("1 finished runs are of an older format without hashes: unverified.",) if done else ())
    assert old.metrics.equals(new.metrics)
    told = f"; it cannot be resumed here (its folder has format 1, not {FORMAT})" if ending == "unfinished" else ""
    assert only(old.runs)["reason"] == only(new.runs)["reason"] + told


def test_what_an_earlier_version_called_skipped_is_declined(tmp_path):
    run_id = write_run(tmp_path, "fedavg", [0.1], ending="declined", note="needs two clients")
    (tmp_path / run_id / "declined.json").rename(tmp_path / run_id / "skipped.json")
    row = only(load(tmp_path).runs)
    assert (row["status"], row["reason"]) == ("declined", "needs two clients")


def test_what_an_earlier_version_called_round_is_a_step(tmp_path):
    told = {"step": 2, "t": 5, "name": "lid", "value": [1.0]}
    run_id = write_run(tmp_path, "fedavg", [0.1, 0.3], diagnostics=[told])
    now = load(tmp_path)
    for name in ("metrics.jsonl", "diagnostics.jsonl"):
        file = tmp_path / run_id / name
        file.write_text(file.read_text().replace('"step"', '"round"').replace("time/step_s", "time/round_s"))
    seal(tmp_path / run_id, json.loads((tmp_path / run_id / "summary.json").read_text()))
    stored = load(tmp_path)
    assert stored.metrics.equals(now.metrics)
    assert stored.metrics["step"].tolist() == [1, 2]
    assert stored.facts(run_id, "lid") == [told]
    assert [row["step"] for row in RunFolder(tmp_path / run_id).rows()] == [1, 2]


def test_a_summary_outweighs_the_marks_of_earlier_attempts(tmp_path):
    run_id = write_run(tmp_path, "fedavg", [0.1])
    (tmp_path / run_id / "failed.json").write_text(json.dumps({"error": "first try", "command": "fnll run"}))
    assert only(load(tmp_path).runs)["status"] == "finished"


def test_a_torn_last_line_is_left_out_and_damage_elsewhere_is_reported(tmp_path):
    torn = write_run(tmp_path, "fedavg", [0.1, 0.2], ending="unfinished")
    with (tmp_path / torn / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "test/acc')
    broken = write_run(tmp_path, "fedprox", [0.1, 0.2])
    (tmp_path / broken / "metrics.jsonl").write_text('{"step": 1\n{"step": 2}\n')
    store = load(tmp_path)
    assert store.metrics["step"].tolist() == [1, 2]
    assert [note for note in store.notes if broken in note] == list(store.notes)


def test_folders_that_are_not_runs_are_ignored(tmp_path):
    write_run(tmp_path, "fedavg", [0.1])
    (tmp_path / "notes").mkdir()
    (tmp_path / "stray.txt").write_text("hello")
    assert len(load(tmp_path).runs) == 1


def test_a_missing_or_empty_directory_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="there is no directory"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="fnll sweep"):
        load(tmp_path)
    write_run(tmp_path / "deeper", "fedavg", [0.1])
    with pytest.raises(UserError, match=r"there are runs in .*deeper"):
        load(tmp_path)


def test_labels_carry_only_what_differs(tmp_path):
    for rho in (0.4, 0.6):
        write_run(tmp_path, "fedavg", [0.1], config={"noise.rho": rho, "noise.tau": 0.5})
    store = load(tmp_path)
    assert store.cell_labels == ["ρ=0.4", "ρ=0.6"]
    assert [cell.noise for cell in store.cells] == ["rho_tau ρ=0.4", "rho_tau ρ=0.6"]


def test_a_single_cell_is_named_in_full(tmp_path):
    write_run(tmp_path, "fedavg", [0.1])
    assert load(tmp_path).cell_labels == ["digits · iid · rho_tau"]


def test_different_choices_bring_their_own_settings(tmp_path):
    none = {"noise": {"_target_": "fnll.scenario.noise.models.NoNoise"}}
    write_run(tmp_path, "fedavg", [0.1], config=none, choices={"noise": "none"})
    for rho in (0.4, 0.8):
        write_run(tmp_path, "fedavg", [0.1], config={"noise.rho": rho})
    assert load(tmp_path).cell_labels == ["none", "rho_tau ρ=0.4", "rho_tau ρ=0.8"]


def test_zero_and_zero_point_nought_are_one_cell(tmp_path):
    write_run(tmp_path, "fedavg", [0.1], config={"noise.tau": 0})
    write_run(tmp_path, "fedprox", [0.1], config={"noise.tau": 0.0})
    assert len(load(tmp_path).cells) == 1


def test_where_a_run_was_computed_is_no_difference(tmp_path):
    write_run(tmp_path, "fedavg", [0.1])
    elsewhere = {
        "executor.workers": 4,
        "runs_dir": "other",
        "dataset.root": "data",
        "device": "cuda",
        "eval.overlap": True,
    }
    write_run(tmp_path, "fedprox", [0.1], config=elsewhere)
    assert len(load(tmp_path).cells) == 1


def test_variants_of_a_method_are_rows(tmp_path):
    for mu in (0.01, 0.1):
        write_run(tmp_path, "fedprox", [0.1], config={"method.mu": mu})
    write_run(tmp_path, "fedavg", [0.1])
    assert load(tmp_path).methods == ["fedavg", "fedprox (μ=0.01)", "fedprox (μ=0.1)"]


def test_a_method_inside_a_method_is_named_by_its_class(tmp_path):
    write_run(tmp_path, "fedcorr", [0.1], config={"method.usual": None})
    inner = {"_target_": "fnll.methods.fedprox.FedProx", "mu": 0.1}
    write_run(tmp_path, "fedcorr", [0.2], config={"method.usual": inner})
    assert load(tmp_path).methods == ["fedcorr", "fedcorr (usual=FedProx, μ=0.1)"]


def test_runs_from_before_and_after_a_move_share_rows_and_columns(tmp_path):
    for seed, home in enumerate(("fnll.methods.fedprox", "fnll.elsewhere")):
        usual = {"_target_": f"{home}.FedProx", "mu": 0.1, "parts": [{"_target_": f"{home}.Part"}]}
        noise = {"_target_": f"{home}.HIdn", "annotator": {"_target_": f"{home}.Annotator"}}
        write_run(tmp_path, "fedcorr", [0.1], seed=seed, config={"method.usual": usual, "noise": noise})
    store = load(tmp_path)
    assert store.methods == ["fedcorr"]
    assert len(store.cells) == 1
    assert not [name for name in store.runs if "_target_" in name or "parts" in name]


def test_a_tuned_learning_rate_does_not_split_a_column(tmp_path):
    write_run(tmp_path, "fedavg", [0.1], config={"local.lr": 0.03})
    write_run(tmp_path, "fedcorr", [0.1], config={"local.lr": 0.01})
    store = load(tmp_path)
    assert (store.methods, len(store.cells)) == (["fedavg", "fedcorr"], 1)


def test_a_learning_rate_swept_for_all_methods_makes_columns(tmp_path):
    for method in ("fedavg", "fedcorr"):
        for lr in (0.01, 0.1):
            write_run(tmp_path, method, [0.1], config={"local.lr": lr})
    store = load(tmp_path)
    assert (store.methods, store.cell_labels) == (["fedavg", "fedcorr"], ["lr=0.01", "lr=0.1"])


def test_an_oracle_shares_the_column_of_the_scenario_it_was_made_from(tmp_path):
    write_run(tmp_path, "fedavg", [0.1])
    write_run(tmp_path, "oracle", [0.2])
    write_run(tmp_path, "fedavg", [0.3], config={"scenario.pooled": True})
    store = load(tmp_path)
    assert len(store.cells) == 1
    kinds = {method: store.kind(method) for method in store.methods}
    assert kinds == {"fedavg (pooled=no)": "method", "fedavg (pooled=yes)": "centralised", "oracle": "oracle"}
    assert store.runs["origin"].nunique() == 1


def test_of_two_runs_of_one_seed_the_newer_numbers_stay(tmp_path):
    old = write_run(tmp_path, "fedavg", [0.1], manifest={"numbers": 1}, config={"device": "cpu"})
    new = write_run(tmp_path, "fedavg", [0.2], manifest={"numbers": 2}, config={"device": "auto"})
    store = load(tmp_path)
    assert old != new
    assert list(store.runs["run_id"]) == [new]
    assert set(store.metrics["run_id"]) == {new}
    assert any("1 other run" in note for note in store.notes)


def test_mixed_numbers_are_pointed_out(tmp_path):
    write_run(tmp_path, "fedavg", [0.1], manifest={"numbers": 1})
    write_run(tmp_path, "fedprox", [0.1], manifest={"numbers": 2})
    assert any("fnll.NUMBERS 1, 2" in note for note in load(tmp_path).notes)


def test_diagnostics_are_read_when_asked_for(tmp_path):
    facts = [
        {"step": 1, "t": 4, "stage": "first", "name": "lid", "value": [1.0, None]},
        {"step": 1, "t": 4, "name": "noisy_clients", "value": [1]},
    ]
    run_id = write_run(tmp_path, "fedcorr", [0.1], diagnostics=facts)
    store = load(tmp_path)
    assert store.diagnostics("lid")[["run_id", "t", "stage", "name"]].to_numpy().tolist() == [
        [run_id, 4, "first", "lid"]
    ]
    assert len(store.diagnostics()) == 2
    assert store.facts(run_id, "noisy_clients")[0]["value"] == [1]


def test_lists_in_configs_become_hashable():
    nested = yaml.safe_load("a: {b: [1, [2, 3]], c: {d: null}}")
    assert flatten(nested) == {"a.b": (1, (2, 3)), "a.c.d": None}
