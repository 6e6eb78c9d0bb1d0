"""Symmetric and generalised cross-entropy: values by hand, gradients, limits, and the methods `sce` and `gce`."""

import math
from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fnll.errors import UserError
from fnll.executors.vectorised import Vectorised
from fnll.testing import TinyWorld, play, same, subject_of
from fnll.tools import generalised_cross_entropy, symmetric_cross_entropy
from fnll.tools import losses as module

DTYPES = (torch.float32, torch.float64)


def some(dtype: torch.dtype, n: int = 7, classes: int = 5) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    return logits.to(dtype), torch.randint(classes, (n,), generator=g)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("label", "loss"), [(0, 3.124005), (2, 8.621889)])
def test_symmetric_cross_entropy_by_hand(label: int, loss: float, dtype: torch.dtype) -> None:
    # σ(2, 1, 0) = (0.665241, 0.244728, 0.090031). For y = 0: CE = −ln 0.665241 = 0.407606, and
    # RCE = −ln 1e-4 · (1 − 0.665241) = 9.210340 · 0.334759 = 3.083245.
    found = symmetric_cross_entropy(torch.tensor([[2.0, 1.0, 0.0]], dtype=dtype), torch.tensor([label]), 0.1, 1.0)
    assert found.dtype == dtype
    assert found.item() == pytest.approx(loss, abs=2e-6)


def test_symmetric_cross_entropy_is_the_sum_that_the_paper_writes() -> None:
    """−Σ p log q with the one-hot label written out and floored."""
    logits, labels = some(torch.float64)
    floored = F.one_hot(labels, 5).double().clamp(min=1e-4)
    reverse = -(logits.softmax(1) * floored.log()).sum(1).mean()
    expected = 0.3 * F.cross_entropy(logits, labels) + 0.7 * reverse
    assert symmetric_cross_entropy(logits, labels, 0.3, 0.7).item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize(
    ("q", "loss"),
    # p_y = 0.665241: (1 − p^0.7) / 0.7 = 0.354614; 1 − p = 0.334759; q = 0: −ln p = 0.407606
    [(0.7, 0.354614), (1.0, 0.334759), (0.0, 0.407606)],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_generalised_cross_entropy_by_hand(q: float, loss: float, dtype: torch.dtype) -> None:
    found = generalised_cross_entropy(torch.tensor([[2.0, 1.0, 0.0]], dtype=dtype), torch.tensor([0]), q)
    assert found.dtype == dtype
    assert found.item() == pytest.approx(loss, abs=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_generalised_cross_entropy_tends_to_cross_entropy(dtype: torch.dtype) -> None:
    """(1 − p^q)/q = −ln p − q (ln p)²/2 + …: value and gradient are within q (ln p)², and rounding, of the limit."""
    logits, labels = some(dtype)
    logits.requires_grad_()
    (limit,) = torch.autograd.grad(F.cross_entropy(logits, labels), logits)
    largest = -F.log_softmax(logits.detach(), 1).gather(1, labels[:, None]).min().item()
    rounding = 20 * torch.finfo(dtype).eps * largest
    gaps = []
    for q in (1e-1, 1e-3, 1e-6, 1e-12):
        loss = generalised_cross_entropy(logits, labels, q)
        (gradient,) = torch.autograd.grad(loss, logits)
        gap = abs(loss.item() - F.cross_entropy(logits, labels).item())
        assert gap <= q * largest**2 + rounding
        assert float((gradient - limit).abs().max()) <= q * largest + rounding
        gaps.append(gap)
    assert gaps[0] > 0.1 > gaps[1] > gaps[2]  # it was another loss before


@pytest.mark.parametrize(
    "loss",
    [
        partial(symmetric_cross_entropy, alpha=0.1, beta=1.0),
        partial(symmetric_cross_entropy, alpha=1.0, beta=0.0),
        partial(generalised_cross_entropy, q=0.7),
        partial(generalised_cross_entropy, q=1.0),
        partial(generalised_cross_entropy, q=1e-3),
    ],
)
def test_gradients(loss) -> None:
    logits, labels = some(torch.float64)
    assert torch.autograd.gradcheck(lambda f: loss(f, labels), logits.requires_grad_())


def test_the_gradient_of_a_disbelieved_label_is_small() -> None:
    """What makes them robust: ∂CE/∂f_y → −1 as p_y → 0, while both reverse and generalised cross-entropy's vanish."""
    for loss in (partial(symmetric_cross_entropy, alpha=0.0, beta=1.0), partial(generalised_cross_entropy, q=0.7)):
        logits = torch.tensor([[12.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss(logits, torch.tensor([1])), logits)
        assert float(gradient.abs().max()) < 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_logits_stay_finite(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4], [-1e4, 0.0, 1e4]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([2, 2])
    for loss in (symmetric_cross_entropy(logits, labels, 0.1, 1.0), generalised_cross_entropy(logits, labels, 0.7)):
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite()
        assert gradient.isfinite().all()
    bounded = generalised_cross_entropy(logits.detach(), labels, 0.7).item()
    assert bounded == pytest.approx(1 / 0.7 / 2)  # one label has p_y = 0, the other p_y = 1


def test_one_and_nothing_are_cross_entropy_bit_for_bit() -> None:
    logits, labels = some(torch.float32)
    plain = F.cross_entropy(logits, labels)
    assert torch.equal(symmetric_cross_entropy(logits, labels, 1.0, 0.0), plain)
    assert torch.equal(generalised_cross_entropy(logits, labels, 0.0), plain)
    assert -math.log(module.LABEL_FLOOR) == pytest.approx(9.210340, abs=1e-6)


# The methods

subject = cache(subject_of)  # composing a config takes longer than a tiny run


@pytest.mark.parametrize(("name", "settings"), [("sce", {"alpha": 1.0, "beta": 0.0}), ("gce", {"q": 0.0})])
def test_the_limit_is_fedavg_also_where_labels_are_wrong(name: str, settings: dict[str, float]) -> None:
    world = TinyWorld("noisy")
    reference = play(subject("fedavg").method(world), world)
    assert same(play(subject(name).method(world, **settings), world), reference)
    assert not same(play(subject(name).method(world), world), reference)


def test_a_small_q_ends_near_fedavg() -> None:
    world = TinyWorld("noisy")
    reference = play(subject("fedavg").method(world), world)[-1].state.weights
    ours = play(subject("gce").method(world, q=1e-6), world)[-1].state.weights
    assert max(float((ours[name] - reference[name]).abs().max()) for name in ours) < 1e-4


@pytest.mark.parametrize("kind", ["noisy", "one_sample", "single_class"])
@pytest.mark.parametrize("name", ["sce", "gce"])
def test_vectorised_close_to_serial(name: str, kind: str) -> None:
    world = TinyWorld(kind)
    method = subject(name).method(world, cohort=6)
    executor = Vectorised(world.scenario)
    plain = play(method, world, rounds=4, cohort=6)[-1].state.weights
    fast = play(method, world, rounds=4, cohort=6, executor=executor)[-1].state.weights
    assert not executor.said, "everything was vectorised"
    assert max(float((plain[name] - fast[name]).abs().max()) for name in plain) < 2e-3


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sce", {"beta": -1.0}, r"method\.beta must be at least 0, got -1\.0"),
        ("gce", {"q": 1.5}, r"method\.q must be in \[0, 1\], got 1\.5"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, settings: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        subject(name).method(TinyWorld(), **settings)
