import json
from pathlib import Path

import pytest
import torch

from fnll.errors import UserError
from fnll.methods.fednoro_detection import noisy_rows
from fnll.report import fednoro_table3
from fnll.report.fednoro_table3 import rates, repeat_detection, starts, table3
from fnll.seeding import numpy_rng

TABLE = [[0.0, 0.1], [0.05, 0.0], [1.0, 0.9], [0.9, 1.0], [0.1, 0.05], [0.0, 0.02]]


def test_rates() -> None:
    found = [{2, 5, 7}, {2, 5}, {2, 5, 7, 8}, {1}]
    assert rates({2, 5, 7}, found) == pytest.approx((0.666667, 0.6875, 0.25), abs=1e-6)


def test_finding_nobody_has_no_precision() -> None:
    assert rates({1}, [set(), {1}]) == (0.5, 0.5, 0.5)


def test_mixtures_are_repeated_for_each_seed() -> None:
    assert repeat_detection(TABLE, {2, 3}, range(5)) == (1, 1, 1)
    assert repeat_detection(torch.tensor(TABLE), {2, 4}, range(5)) == (0.5, 0.5, 0)


@pytest.mark.parametrize("covariance", ["full", "diag"])
@pytest.mark.parametrize("clients", [3, 6, 20])
def test_seeds_that_start_alike_are_answered_alike(clients: int, covariance: str) -> None:
    rng = numpy_rng(clients, covariance)
    table = torch.from_numpy(rng.uniform(0, 1, (clients, 4)))
    table[0] = table[1]
    seeds = range(2**32 - 50, 2**32 + 100)
    truth = set(range(clients // 2))
    answers = [noisy_rows(table, "paper", covariance, seed) for seed in seeds]
    assert repeat_detection(table, truth, seeds, covariance) == rates(truth, answers)
    by_start: dict[tuple[int, int], set[frozenset[int]]] = {}
    for (_, start), answer in zip(starts(table, seeds), answers, strict=True):
        by_start.setdefault(start, set()).add(answer)
    assert all(len(found) == 1 for found in by_start.values())
    assert len(by_start) > 3


def test_a_mixture_is_fitted_once_for_each_start(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = []
    monkeypatch.setattr(fednoro_table3, "noisy_rows", lambda *told: fitted.append(told[-1]) or noisy_rows(*told))
    repeat_detection(TABLE, {2, 3}, range(1000))
    assert len(fitted) <= 6 * 6


def test_clients_without_data_keep_their_place() -> None:
    assert repeat_detection([None, *TABLE], {3, 4}, range(3)) == (1, 1, 1)


def write(folder: Path, realised: list[float | None], *facts: dict[str, object], covariance: str = "full") -> Path:
    (folder / "config.yaml").write_text(f"method: {{covariance: {covariance}}}\n")
    (folder / "manifest.json").write_text(json.dumps({"realised": realised}))
    (folder / "diagnostics.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    return folder


def test_a_runs_records_are_enough(tmp_path: Path) -> None:
    facts = [{"name": "noisy_clients", "value": [3]}, {"name": "indicator", "value": TABLE}]
    run = write(tmp_path, [0, 0, 0.4, 0.3, 0, 0], *facts)
    assert table3(run, range(3)) == (1, 1, 1)


def test_the_mixtures_have_the_covariance_of_the_run(tmp_path: Path) -> None:
    """Two crossing lines, which only full covariances can tell apart."""
    across = torch.linspace(-1, 1, 10, dtype=torch.float64)
    table = torch.cat([torch.stack([across, across], 1), torch.stack([across, 0.1 - across], 1)]).tolist()
    truth = [0.0] * 10 + [0.5] * 10
    fact = {"name": "indicator", "value": table}
    scores = {}
    for covariance in ("full", "diag"):
        scores[covariance] = table3(write(tmp_path, truth, fact, covariance=covariance), range(20))
        assert scores[covariance] == repeat_detection(table, set(range(10, 20)), range(20), covariance)
    assert scores["full"] != scores["diag"]


def test_runs_that_cannot_be_scored(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="recorded no indicator"):
        table3(write(tmp_path, [0.0], {"name": "noisy_clients", "value": []}))
    with pytest.raises(UserError, match="nobody knows the true labels"):
        table3(write(tmp_path, [None] * 6, {"name": "indicator", "value": TABLE}))
