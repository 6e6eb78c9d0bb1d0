"""One bad run does not spoil the report: it is listed with its reason, and the others are reported."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from fnll.harness.integrity import seal
from fnll.report import all_tables, analyse, load
from fnll.testing.store import write_run

DEEP = "[" * 100_000
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MANIFEST = {
    "numbers": "x", "nominal": 3, "realised": ["x"], "code": [1], "privileges": 3, "versions": [1], "host": "x",
    "num_clients": "x", "format": "x", "started": {}, "commit": [1],
}  # fmt: skip
SUMMARY = {"time/total_s": "x", "seed": [1], "diverged": "x", "test/accuracy": 3, "exact": "maybe"}
LINES = [
    "[1]",
    '{"step": "x"}',
    '{"step": 1, "test/accuracy": "good"}',
    '{"step": 1, "test/accuracy": 1' + "0" * 400 + "}",
]


def report(store):
    """Everything but the drawing."""
    found = load(store)
    assert all_tables(analyse(found))
    return found


@pytest.fixture
def store(tmp_path):
    write_run(tmp_path, "fedavg", [0.5, 0.6])
    bad = tmp_path / write_run(tmp_path, "fedprox", [0.1, 0.2])
    return tmp_path, bad


def reason(found, bad):
    """What is said about the bad run, in the frame or in the notes; the good one is as it was."""
    assert found.runs.loc[found.runs["method"] == "fedavg", "status"].tolist() == ["finished"]
    listed = found.runs.loc[found.runs["run_id"] == bad.name]
    if len(listed):
        assert listed["status"].iloc[0] == "damaged"
        return listed["reason"].iloc[0]
    (note,) = [note for note in found.notes if bad.name in note]
    return note


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "summary.json", "metrics.jsonl", "diagnostics.jsonl"])
@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"3", DEEP.encode(), BOMB.encode(), b"null"])
def test_nonsense_in_the_place_of_a_file(store, name, content):
    folder, bad = store
    (bad / name).write_bytes(content)
    assert reason(report(folder), bad)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "summary.json", "metrics.jsonl"])
def test_what_is_no_file(store, name, kind):
    folder, bad = store
    (bad / name).unlink()
    if kind == "pipe":
        os.mkfifo(bad / name)
    elif kind == "folder":
        (bad / name).mkdir()
    else:
        (bad / name).symlink_to("/dev/zero")
    assert reason(report(folder), bad)


@pytest.mark.parametrize(("file", "key"), [
    *(("manifest.json", key) for key in MANIFEST), *(("summary.json", key) for key in SUMMARY)
])  # fmt: skip
def test_a_value_of_a_wrong_type_in_a_run_whose_hashes_fit(store, file, key):
    folder, bad = store
    facts = json.loads((bad / file).read_text()) | {key: (MANIFEST | SUMMARY)[key]}
    (bad / file).write_text(json.dumps(facts))
    seal(bad, json.loads((bad / "summary.json").read_text()))
    assert key.split("/")[0] in reason(report(folder), bad)


@pytest.mark.parametrize("line", LINES)
def test_an_odd_line_in_a_run_whose_hashes_fit(store, line):
    folder, bad = store
    (bad / "metrics.jsonl").write_text(f"{line}\n" + (bad / "metrics.jsonl").read_text())
    seal(bad, json.loads((bad / "summary.json").read_text()))
    assert "metrics.jsonl, line 1" in reason(report(folder), bad)


def test_stores_are_merged_and_a_run_counts_once(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    shared = write_run(one, "fedavg", [0.5, 0.6])
    write_run(one, "fedprox", [0.1, 0.2])
    write_run(two, "fedcorr", [0.3, 0.4])
    shutil.copytree(one / shared, two / shared)
    (one / shared / "summary.json").unlink()  # under way here, finished there
    merged = load(one, two)
    assert sorted(merged.runs["method"]) == ["fedavg", "fedcorr", "fedprox"]
    assert set(merged.runs["status"]) == {"finished"}
    assert len(merged.metrics) == 6
