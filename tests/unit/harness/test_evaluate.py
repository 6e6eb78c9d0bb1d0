"""What the harness measures and how it sums it up."""

import pytest
import torch
from torch import nn

from fnll.harness.evaluate import LocalAccuracies, TestSet, confusion, scores
from fnll.harness.run_folder import RunFolder, summarise
from fnll.images import InMemory, Transform
from fnll.types import State


def answers(predictions):
    """A model that gives fixed answers, image by image: the pixel is the answer's position."""

    class Fixed(nn.Module):
        def forward(self, x):
            index = (x.flatten(1)[:, 0] * 255).round().long()
            return 10.0 * nn.functional.one_hot(torch.tensor(predictions)[index], 3).float()

    return Fixed()


def make_set(labels, batch_size=4, **changes):
    pixels = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
    return TestSet(
        InMemory(pixels), torch.tensor(labels), Transform((0.0,), (1.0,)), 3, batch_size, torch.device("cpu")
    )


def test_accuracy_and_balanced_accuracy():  # with a third class that never occurs in the truth
    truth, predicted = [0] * 8 + [1] * 2, [0] * 7 + [2] + [1, 0]
    result = scores(*confusion(answers(predicted), make_set(truth)))
    assert result["test/accuracy"] == pytest.approx(0.8)
    assert result["test/balanced_accuracy"] == pytest.approx(0.6875)


def test_top5_accuracy_counts_the_five_likeliest_answers_of_more_than_five_classes():
    class Ranked(nn.Module):
        def forward(self, x):
            return torch.arange(7.0).expand(len(x), 7)  # the likeliest are 6, 5, 4, 3, 2

    def of(classes, labels):
        pixels = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
        plain = Transform((0.0,), (1.0,))
        return TestSet(InMemory(pixels), torch.tensor(labels), plain, classes, 2, torch.device("cpu"))

    result = scores(*confusion(Ranked(), of(7, [6, 2, 1, 3, 0])))
    assert (result["test/accuracy"], result["test/top5_accuracy"]) == (pytest.approx(0.2), pytest.approx(0.6))
    summary = summarise([{"step": 1, **result}], diverged=False, rounds=1)
    assert summary["test/top5_accuracy"]["best"] == pytest.approx(0.6)
    assert "test/top5_accuracy" not in scores(*confusion(answers([0]), make_set([0])))


def test_loss_is_the_mean_over_all_images_whatever_the_batches():
    truth, predicted = [0, 1, 2, 0, 1], [0, 1, 2, 1, 2]
    by_hand = (
        3 * torch.log(1 + 2 * torch.exp(torch.tensor(-10.0)))
        + 2 * (10 + torch.log(1 + 2 * torch.exp(torch.tensor(-10.0))))
    ) / 5
    for size in (1, 2, 5, 100):
        assert scores(*confusion(answers(predicted), make_set(truth, size)))["test/loss"] == pytest.approx(
            float(by_hand), rel=1e-5
        )


def test_large_test_sets_are_not_kept_as_floats(monkeypatch):
    monkeypatch.setattr("fnll.harness.evaluate.IN_MEMORY", 0)
    streamed = make_set([0, 1, 2, 0, 1])
    assert streamed.ready is None
    assert [len(y) for _, y in streamed.batches()] == [4, 1]


def test_the_model_is_judged_in_evaluation_mode():
    class Dropping(nn.Module):
        def forward(self, x):
            assert not self.training
            return torch.zeros(len(x), 3)

    confusion(Dropping().train(), make_set([0, 1]))


def rows(values, start=1):
    return [
        {
            "step": start + i,
            "test/accuracy": v,
            "test/balanced_accuracy": v,
            "test/loss": 1 - v,
            "comm/up_bytes": i,
            "time/total_s": 2.0 * i,
        }
        for i, v in enumerate(values)
    ]


def test_best_last_and_last_ten():
    summary = summarise(rows([0.1, 0.9] + [0.5] * 9 + [0.7]), diverged=False, rounds=12)
    assert summary["test/accuracy"] == {"best": 0.9, "last": 0.7, "last10": pytest.approx(0.52)}
    assert summary["test/loss"]["best"] == pytest.approx(0.1)
    assert summary["comm/up_bytes"] == 11
    assert summary["time/total_s"] == 22.0


def test_last_ten_are_rounds_not_rows():
    sparse = [row for row in rows([0.0] * 5 + [0.4] * 10) if row["step"] <= 5 or row["step"] % 2]
    assert summarise(sparse, diverged=False, rounds=15)["test/accuracy"]["last10"] == pytest.approx(0.4)


def test_a_diverged_run_has_no_last():
    summary = summarise(rows([0.3, 0.6]), diverged=True, rounds=20)
    assert summary["test/accuracy"] == {"best": 0.6, "last": None, "last10": None}
    nothing = summarise([], diverged=True, rounds=20)
    assert set(nothing) == {"test/accuracy", "test/balanced_accuracy", "test/loss"}
    assert all(scores == {"best": None, "last": None, "last10": None} for scores in nothing.values())


def test_a_loss_that_is_not_finite_is_never_passed_over_in_silence():
    losses = [row | {"test/loss": loss} for row, loss in zip(rows([0.5] * 3), [2.0, 1.0, None], strict=True)]
    assert summarise(losses, diverged=False, rounds=3)["test/loss"] == {"best": 1.0, "last": None, "last10": None}


def test_cutting_back(tmp_path):
    folder = RunFolder(tmp_path / "r")
    folder.open()
    folder.append("metrics.jsonl", [{"step": 1, "x": float("nan")}])
    length = folder.written()
    folder.append("metrics.jsonl", [{"step": 2}])
    folder.cut(length)
    assert folder.rows() == [{"step": 1, "x": None}]
    folder.cut({})
    assert folder.rows() == []


def test_a_clients_own_model_is_judged_again_when_it_has_changed():
    loaded = []

    def model(state):
        loaded.append(state)
        return answers([int(state.weights["answer"])] * 4)

    judge = LocalAccuracies(model, make_set([0, 0, 1, 2]))
    first, second, third = (State({"answer": torch.tensor(k)}) for k in (0, 1, 2))
    assert judge.of([(7, first), (9, second)]) == {7: 0.5, 9: 0.25}
    assert judge.of([(7, first), (9, third)]) == {7: 0.5, 9: 0.25}
    assert loaded == [first, second, third], "client 7 was not judged again, client 9 was"
