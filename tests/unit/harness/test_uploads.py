"""`diagnostics_uploads`: the models that clients send are judged one by one, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fnll.harness.execute import execute
from fnll.harness.prepare import prepare
from tiny import TINY, compose

FOUR = [*TINY, "num_clients=4", "rounds=2", "diagnostics_every=1", "eval.overlap=false"]


def recorded(place: Path, *words: str) -> tuple[list[dict[str, float]], list[dict[str, object]], str]:
    run = prepare(compose([*FOUR, f"runs_dir={place}", *words]))
    execute(run)
    folder = place / run.run_id
    facts = [json.loads(line) for line in (folder / "diagnostics.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    numbers = [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]
    return numbers, [fact for fact in facts if fact["name"] == "upload_accuracy"], run.run_id


@pytest.mark.parametrize("method", ["fedavg", "coteaching"])
def test_uploads_are_judged_and_nothing_else_changes(method: str, tmp_path: Path) -> None:
    plain, none, name = recorded(tmp_path, f"method={method}")
    rows, facts, other = recorded(tmp_path, f"method={method}", "diagnostics_uploads=true")
    assert not none
    assert rows == plain
    assert name != other
    assert [fact["step"] for fact in facts] == [1, 2]
    for fact in facts:
        values = fact["value"]
        assert isinstance(values, dict)
        assert len(values) == 2  # half of the clients
        assert all(0 <= value <= 1 for value in values.values())


def test_an_upload_that_is_the_global_model_has_its_accuracy(tmp_path: Path) -> None:
    """With one client in a round, FedAvg's global model is what that client sent."""
    rows, facts, _ = recorded(tmp_path, "method=fedavg", "fraction=0.25", "diagnostics_uploads=true")
    assert len(rows) == 2
    for row, fact in zip(rows, facts, strict=True):
        values = fact["value"]
        assert isinstance(values, dict)
        assert list(values.values()) == [pytest.approx(row["test/accuracy"])]
