"""Double softmax, passes over a client's own samples, and mixup."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fnll.errors import UserError
from fnll.images import HorizontalFlip, InMemory, Transform
from fnll.seeding import torch_rng
from fnll.tools import (
    Mixed,
    double_softmax_cross_entropy,
    evaluating,
    mixed_cross_entropy,
    mixup,
    predict,
    sample_losses,
)
from fnll.types import Client, Samples


def client(n: int = 11, classes: int = 3) -> Client:
    pixels = torch.randint(0, 256, (20, 1, 4, 4), generator=torch_rng(0), dtype=torch.uint8)
    y = torch.randint(0, classes, (n,), generator=torch_rng(1))
    transform = Transform((0.5,), (0.25,), (HorizontalFlip(),))
    return Client(0, 0, Samples(InMemory(pixels), torch.arange(n), y, y, transform, classes), {}, seed=5)


def network(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, classes))


# --- double softmax --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "low", "high"), [(10, 1.461150, 2.461150), (14, 1.754824, 2.754824), (100, 3.622207, 4.622207)]
)
def test_double_softmax_spans_one(classes: int, low: float, high: float) -> None:
    sure = torch.full((2, classes), -100.0, dtype=torch.float64)
    sure[:, 0] = 100
    losses = double_softmax_cross_entropy(sure, torch.tensor([0, 1]))
    assert losses.tolist() == pytest.approx([low, high], abs=1e-6)
    assert losses.tolist() == pytest.approx([math.log(1 + (classes - 1) / math.e), math.log(math.e + classes - 1)])
    uniform = double_softmax_cross_entropy(torch.zeros(1, classes), torch.tensor([0]))
    assert uniform.item() == pytest.approx(math.log(classes), rel=1e-6)


def test_double_softmax_values_and_inversion() -> None:
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    y = torch.arange(3)
    logits = p.log().expand(3, 3)
    assert F.cross_entropy(logits, y, reduction="none").tolist() == pytest.approx(
        [0.356675, 1.609438, 2.302585], abs=1e-6
    )
    assert double_softmax_cross_entropy(logits, y).tolist() == pytest.approx([0.767950, 1.267950, 1.367950], abs=1e-6)
    two = torch.tensor([[0.31, 0.69, 0.0], [0.30, 0.35, 0.35]], dtype=torch.float64).log()
    losses = double_softmax_cross_entropy(two, torch.zeros(2, dtype=torch.int64))
    assert losses.tolist() == pytest.approx([1.161816, 1.132222], abs=1e-6)
    plain = F.cross_entropy(two, torch.zeros(2, dtype=torch.int64), reduction="none")
    assert plain[0] < plain[1]  # the other way round


# --- a client's own samples ------------------------------------------------------------------------------------------


def test_predict_is_in_order_in_evaluation_mode_and_restores_modes() -> None:
    net = network().train()
    net[2].eval()
    someone = client()
    kept = {name: value.clone() for name, value in net.state_dict().items()}
    logits = predict(net, someone, size=4)
    assert [part.training for part in net.modules()] == [True, True, True, False, True, True]
    assert all(torch.equal(value, kept[name]) for name, value in net.state_dict().items())
    net.eval()
    pixels = someone.data.transform.plain(someone.data.take(torch.arange(11), torch.device("cpu")))
    with torch.no_grad():
        torch.testing.assert_close(logits, net(pixels))
    assert torch.equal(logits, predict(net, someone, size=4))


def test_predictions_can_be_used_by_autograd() -> None:
    logits = predict(network(), client())
    weight = torch.ones(3, requires_grad=True)
    (logits * weight).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, logits.sum(0))


def test_augmented_views_are_random_but_addressed() -> None:
    net, someone = network().eval(), client()
    assert torch.equal(predict(net, someone, augment=True), predict(net, someone, augment=True))
    assert not torch.equal(predict(net, someone, augment=True), predict(net, someone))
    assert not torch.equal(predict(net, someone, augment=True), predict(net, someone.reseeded("other"), augment=True))


def test_sample_losses_in_both_forms() -> None:
    net, someone = network().eval(), client()
    logits = predict(net, someone)
    rows = torch.arange(len(someone))
    once = -logits.softmax(1).log()[rows, someone.data.y]
    twice = -logits.softmax(1).softmax(1).log()[rows, someone.data.y]
    torch.testing.assert_close(sample_losses(net, someone), once)
    torch.testing.assert_close(sample_losses(net, someone, variant="official"), twice)
    with pytest.raises(UserError, match="paper or official"):
        sample_losses(net, someone, variant="other")  # type: ignore[arg-type]


def test_corrected_labels_are_the_ones_judged() -> None:
    net, someone = network().eval(), client()
    other = someone.with_labels((someone.data.y + 1) % 3)
    rows = torch.arange(len(someone))
    torch.testing.assert_close(sample_losses(net, other), -predict(net, someone).log_softmax(1)[rows, other.data.y])


def test_an_empty_client_has_no_predictions() -> None:
    nobody = client().subset(torch.zeros(11, dtype=torch.bool))
    assert predict(network(), nobody).shape == (0, 3)
    assert sample_losses(network(), nobody).shape == (0,)


def test_modes_are_restored_after_an_error() -> None:
    net = network().train()
    with pytest.raises(RuntimeError), evaluating(net):
        net(torch.zeros(2, 99))
    assert all(part.training for part in net.modules())


# --- mixup -----------------------------------------------------------------------------------------------------------


def batch() -> tuple[Tensor, Tensor]:
    return torch.arange(12.0).view(6, 1, 1, 2), torch.arange(6)


def test_mixup_mixes_each_sample_with_its_partner() -> None:
    x, y = batch()
    images, mixed = mixup(x, y, 1.0, torch_rng(4))
    assert 0 < mixed.share < 1
    assert mixed.rest.item() == pytest.approx(1 - mixed.share.item())
    assert mixed.y_a is y
    assert sorted(mixed.y_b.tolist()) == y.tolist()
    torch.testing.assert_close(images, mixed.share * x + (1 - mixed.share) * x[mixed.y_b])
    again, _ = mixup(x, y, 1.0, torch_rng(4))
    assert torch.equal(images, again)
    assert mixup(x, y, 1.0, torch_rng(5))[1].share != mixed.share


def test_mixup_with_alpha_zero_mixes_nothing() -> None:
    x, y = batch()
    images, mixed = mixup(x, y, 0.0, torch_rng(4))
    assert mixed.share == 1
    assert torch.equal(images, x)
    logits = torch.randn(6, 6, generator=torch_rng(0))
    assert torch.equal(mixed_cross_entropy(logits, mixed), F.cross_entropy(logits, y))


@pytest.mark.parametrize(("alpha", "variance"), [(1.0, 1 / 12), (0.2, 1 / (4 * 1.4)), (8.0, 1 / (4 * 17))])
def test_the_share_is_beta_distributed(alpha: float, variance: float) -> None:
    """The variance of Beta(α, α) is 1 / (4 (2α + 1)); 2,000 draws give it within 15 % and the mean within 0.04."""
    generator = torch_rng(0)
    x, y = batch()
    shares = torch.tensor([mixup(x, y, alpha, generator)[1].share for _ in range(2000)])
    assert shares.mean().item() == pytest.approx(0.5, abs=0.04)
    assert shares.var().item() == pytest.approx(variance, rel=0.15)


def test_mixed_cross_entropy_by_hand() -> None:
    """p = (1/4, 3/4), labels 0 and 1, λ = 0.3: 0.3 ln 4 + 0.7 ln(4/3)."""
    mixed = Mixed(torch.tensor([0]), torch.tensor([1]), share=torch.tensor(0.3), rest=torch.tensor(0.7))
    logits = torch.tensor([[0.25, 0.75]]).log()
    expected = 0.3 * math.log(4) + 0.7 * math.log(4 / 3)
    assert mixed_cross_entropy(logits, mixed).item() == pytest.approx(expected, rel=1e-6)
