"""The ramp, logit adjustment, and logit adjustment with distillation, in both forms."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fnll.errors import UserError
from fnll.seeding import torch_rng
from fnll.tools import kd_ramp, la_kd, log_prior, logit_adjusted
from fnll.tools.adjustment import divergence

LOGITS = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64)
TEACHER = (torch.tensor([[0.5, 1.5, 1.0]], dtype=torch.float64) / 0.8).softmax(1)
COUNTS = torch.tensor([60, 30, 10])
MISSING = torch.tensor([75, 25, 0])


def label(y: int) -> Tensor:
    return torch.tensor([y])


# --- ramp ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        *[(0, 0.005390), (10, 0.005390), (11, 0.006943), (20, 0.050400), (25, 0.120436), (29, 0.214796)],
        *[(30, 0.244177), (40, 0.612984), (48, 0.797374), (49, 0.8), (99, 0.8)],
    ],
)
def test_ramp_of_the_released_code(t: int, expected: float) -> None:
    assert kd_ramp(t, 10, 49, 0.8) == pytest.approx(expected, abs=1e-6)


def test_other_ramps() -> None:
    for t, expected in ((20, 0.005390), (70, 0.229204), (119, 0.799600), (120, 0.8)):
        assert kd_ramp(t, 20, 120, 0.8) == pytest.approx(expected, abs=1e-6)
    assert kd_ramp(7, 7, 7, 0.8) == 0.8
    assert kd_ramp(6, 7, 7, 0.8) == pytest.approx(0.8 * math.exp(-5))


# --- logit adjustment ------------------------------------------------------------------------------------------------


def test_log_prior_is_log_pi_up_to_a_constant() -> None:
    prior = log_prior(COUNTS)
    assert (prior - prior.logsumexp(0)).tolist() == pytest.approx([-0.510826, -1.203973, -2.302585], abs=1e-6)
    assert prior[0] == 0


def test_logit_adjustment() -> None:
    adjusted = logit_adjusted(LOGITS, COUNTS)
    assert adjusted.softmax(1)[0].tolist() == pytest.approx([0.406466, 0.552445, 0.041089], abs=1e-6)
    with_prior = [F.cross_entropy(adjusted, label(y)).item() for y in range(3)]
    without = [F.cross_entropy(LOGITS, label(y)).item() for y in range(3)]
    assert with_prior == pytest.approx([0.900255, 0.593402, 3.192014], abs=1e-6)
    assert without == pytest.approx([1.464369, 0.464369, 1.964369], abs=1e-6)


def test_logit_adjustment_with_a_missing_class() -> None:
    logits = LOGITS.clone().requires_grad_()
    loss = F.cross_entropy(logit_adjusted(logits, MISSING), label(0))
    loss.backward()
    assert loss.item() == pytest.approx(0.645056, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([-0.4754, 0.4754, 0], abs=1e-4)
    assert F.cross_entropy(logit_adjusted(LOGITS, MISSING), label(2)).item() == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_uniform_prior_changes_no_bit(dtype: torch.dtype) -> None:
    logits = torch.randn(50, 7, generator=torch_rng(0), dtype=dtype)
    for count in (1, 3, 49, 12345):
        adjusted = logit_adjusted(logits, torch.full((7,), count))
        assert adjusted.dtype == dtype
        assert torch.equal(adjusted, logits)


def test_a_client_with_one_class_learns_nothing_but_stays_finite() -> None:
    logits = LOGITS.clone().requires_grad_()
    loss = F.cross_entropy(logit_adjusted(logits, torch.tensor([0, 9, 0])), label(1))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0, 0, 0]]


def test_no_sample_has_no_prior() -> None:
    assert log_prior(torch.zeros(3)).isnan().all()


# --- with distillation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_distillation_with_all_classes(variant: str) -> None:
    assert TEACHER[0].tolist() == pytest.approx([0.157268, 0.548918, 0.293815], abs=1e-6)

    def loss(weight: float) -> float:
        return la_kd(LOGITS, label(0), TEACHER, COUNTS, weight, variant).item()  # type: ignore[arg-type]

    assert loss(1.0) == pytest.approx(0.425145, abs=1e-6)
    assert loss(0.0) == pytest.approx(0.900255, abs=1e-6)
    assert loss(0.4) == pytest.approx(0.710211, abs=1e-6)


def test_distillation_with_a_missing_class_as_released() -> None:
    logits = LOGITS.clone().requires_grad_()
    loss = la_kd(logits, label(0), TEACHER, MISSING, 0.4, "official")
    loss.backward()
    assert la_kd(LOGITS, label(0), TEACHER, MISSING, 1.0, "official").item() == pytest.approx(-0.470366, abs=1e-6)
    assert loss.item() == pytest.approx(0.198887, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([-0.1999, 0.1999, 0], abs=1e-4)


def test_distillation_with_a_missing_class_masked_and_renormalised() -> None:
    logits = LOGITS.clone().requires_grad_()
    loss = la_kd(logits, label(0), TEACHER, MISSING, 0.4)
    loss.backward()
    assert la_kd(LOGITS, label(0), TEACHER, MISSING, 1.0).item() == pytest.approx(0.191403, abs=1e-6)
    assert loss.item() == pytest.approx(0.4 * 0.191403 + 0.6 * 0.645056, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 2] == 0
    student = logit_adjusted(LOGITS, MISSING).softmax(1)
    target = TEACHER[:, :2] / TEACHER[:, :2].sum()
    expected = 0.4 * (student[:, :2] - target) + 0.6 * (student[:, :2] - torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(logits.grad[:, :2], expected)


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_distillation_averages_over_the_batch_and_ends_in_logit_adjustment(variant: str) -> None:
    logits = torch.randn(8, 3, generator=torch_rng(1))
    teacher = torch.randn(8, 3, generator=torch_rng(2)).softmax(1)
    y = torch.randint(0, 2, (8,), generator=torch_rng(3))
    each = [la_kd(logits[i : i + 1], y[i : i + 1], teacher[i : i + 1], MISSING, 0.3, variant) for i in range(8)]  # type: ignore[arg-type]
    torch.testing.assert_close(la_kd(logits, y, teacher, MISSING, 0.3, variant), torch.stack(each).mean())  # type: ignore[arg-type]
    alone = F.cross_entropy(logit_adjusted(logits, MISSING), y)
    assert torch.equal(la_kd(logits, y, teacher, MISSING, 0.0, variant), alone)  # type: ignore[arg-type]


def test_a_teacher_that_believes_in_missing_classes_only_stays_finite() -> None:
    teacher = torch.tensor([[0.0, 0.0, 1.0]])
    assert la_kd(LOGITS.float(), label(0), teacher, MISSING, 0.5).isfinite()


def test_unknown_variant() -> None:
    with pytest.raises(UserError, match="did you mean official"):
        la_kd(LOGITS, label(0), TEACHER, COUNTS, 0.5, "offical")  # type: ignore[arg-type]


def test_divergence_is_torchs_bit_for_bit():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 5, generator=g, requires_grad=True)
    log_probs = logits.log_softmax(1)
    target = torch.rand(9, 5, generator=g).masked_fill(torch.rand(9, 5, generator=g) < 0.3, 0.0)
    ours, theirs = divergence(log_probs, target), F.kl_div(log_probs, target, reduction="batchmean")
    assert torch.equal(ours, theirs)
    gradients = [torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (ours, theirs)]
    assert torch.equal(*gradients)
