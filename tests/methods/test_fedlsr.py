"""FedLSR: its loss by hand, in the released code's form and in the equations', and the second view."""

import logging
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fnll.executors.vectorised import Vectorised
from fnll.harness.config import compose
from fnll.images import HorizontalFlip, Transform
from fnll.methods.fedlsr import FedLSR, TwoViews, lsr_loss, recoloured, rotated
from fnll.testing import TinyWorld, play, same, subject_of, tiny_local
from fnll.types import CPU, Batch, Client
from fnll.weights import all_finite

DTYPES = (torch.float32, torch.float64)


subject = cache(subject_of)  # composing a config takes longer than a tiny run


def fedlsr(world: TinyWorld, cohort: int = 3, name: str = "fedlsr", **settings: Any) -> FedLSR:
    method = subject(name).method(world, cohort, **settings)
    assert isinstance(method, FedLSR)
    return method


def one(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """One sample of class 0 with logits (1, 0, 0) and (0.5, 0.5, 0) for its views."""
    return torch.tensor([[1.0, 0, 0]], dtype=dtype), torch.tensor([[0.5, 0.5, 0]], dtype=dtype), torch.tensor([0])


# The loss, with m = 1/2: σ(1, 0, 0) = (0.576117, 0.211942, 0.211942) and σ(0.5, 0.5, 0) = (0.383652, 0.383652,
# 0.232697) give p = (0.479884, 0.297797, 0.222319); squared and scaled, p_s = (0.625110, 0.240726, 0.134164).


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("gamma", "entropy_weight", "value"),
    [
        (0.0, 0.0, 0.829825),  # −log σ(p_s)_0
        (1.0, 0.0, 0.829825 + 0.046946),  # JS(σ(3, 0, 0), σ(1.5, 1.5, 0)) = 0.140837, over three classes
        (0.0, 1.0, 0.829825 + 1.006515),  # the entropy of σ(σ(3, 0, 0))
        (0.4, 0.6, 1.452512),
    ],
)
def test_the_loss_of_the_released_code(dtype: torch.dtype, gamma: float, entropy_weight: float, value: float) -> None:
    loss = lsr_loss(*one(dtype), 0.5, gamma, entropy_weight)
    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(value, abs=2e-6)
    assert lsr_loss(*one(dtype), torch.tensor(0.5, dtype=dtype), gamma, entropy_weight).item() == loss.item()


@pytest.mark.parametrize(
    ("form", "gamma", "entropy_weight", "value"),
    [
        ({"classification": "cross_entropy"}, 0.0, 0.0, 0.469828),  # −log 0.625110
        ({"divergence": "class_sum"}, 1.0, 0.0, 0.829825 + 0.140837),
        # entropies of (0.909443, 0.045279, 0.045279) and (0.449816, 0.449816, 0.100368)
        ({"entropy": "both_views"}, 0.0, 1.0, 0.829825 + (0.366594 + 0.949468) / 2),
        ({"temperature": 1.0}, 1.0, 0.0, 0.829825 + 0.007503),  # JS of the two σ above, 0.022510, over three
    ],
    ids=["classification", "divergence", "entropy", "temperature"],
)
def test_each_form_of_the_equations(form: dict[str, Any], gamma: float, entropy_weight: float, value: float) -> None:
    assert lsr_loss(*one(), 0.5, gamma, entropy_weight, **form).item() == pytest.approx(value, abs=2e-6)


def test_the_mix_weighs_the_first_view() -> None:
    first, second, label = one()
    alone = F.cross_entropy(_sharpened(first), label)
    assert torch.allclose(lsr_loss(first, second, label, 1.0, 0.0, 0.0), alone)
    assert torch.allclose(lsr_loss(second, first, label, 0.0, 0.0, 0.0), alone)


def _sharpened(logits: Tensor) -> Tensor:
    squares = logits.softmax(dim=1) ** 2
    return squares / squares.sum(dim=1, keepdim=True)


def test_it_is_a_mean_over_the_batch() -> None:
    g = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 6, 4, generator=g, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    whole = lsr_loss(first, second, labels, 0.3, 0.4, 0.6)
    rows = [lsr_loss(first[i : i + 1], second[i : i + 1], labels[i : i + 1], 0.3, 0.4, 0.6) for i in range(6)]
    assert torch.allclose(whole, torch.stack(rows).mean())


@pytest.mark.parametrize("form", [{}, {"classification": "cross_entropy", "entropy": "both_views"}], ids=str)
def test_certain_predictions_give_a_finite_loss_and_gradient(form: dict[str, Any]) -> None:
    first = torch.tensor([[500.0, -500.0], [-500.0, 500.0]], requires_grad=True)
    loss = lsr_loss(first, -first.detach(), torch.tensor([1, 1]), 1.0, 0.4, 0.6, **form)
    loss.backward()
    assert loss.isfinite()
    assert first.grad is not None
    assert first.grad.isfinite().all()


def test_equal_views_do_not_diverge() -> None:
    first, _, label = one()
    assert torch.allclose(lsr_loss(first, first, label, 0.2, 9.0, 0.0), lsr_loss(first, first, label, 0.7, 0.0, 0.0))


def test_gradients_are_those_of_finite_differences() -> None:
    g = torch.Generator().manual_seed(1)
    first, second = (torch.randn(3, 4, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(2))
    labels = torch.tensor([0, 3, 2])
    assert torch.autograd.gradcheck(lambda a, b: lsr_loss(a, b, labels, 0.3, 0.4, 0.6), (first, second))


# Schedules and views


def test_gamma_grows_over_the_warm_up() -> None:
    method = fedlsr(TinyWorld(), gamma=0.4, warmup=4)
    assert [method.weight(t) for t in (0, 1, 3, 4, 9)] == pytest.approx([0, 0.1, 0.3, 0.4, 0.4])
    assert fedlsr(TinyWorld(), gamma=0.4, warmup=0).weight(0) == 0.4


def test_fedlsr_plus_is_fedlsr_with_an_entropy_term() -> None:
    plain, plus = (subject_of(name).settings for name in ("fedlsr", "fedlsr_plus"))
    assert (plain.pop("entropy_weight"), plus.pop("entropy_weight")) == (0.0, 0.6)
    assert plain == plus


def test_a_rotation_is_one_for_the_batch_and_at_most_thirty_degrees() -> None:
    dot = torch.zeros(2, 1, 33, 33)
    dot[:, :, 4:7, 15:18] = 1.0  # above the centre
    angles = []
    for seed in range(40):
        first, second = rotated(dot, torch.Generator().manual_seed(seed))
        assert torch.equal(first, second)
        rows, columns = torch.nonzero(first[0], as_tuple=True)
        angles.append(math.degrees(math.atan2(float(columns.double().mean()) - 16, 16 - float(rows.double().mean()))))
    assert -31 < min(angles) < -20
    assert 20 < max(angles) < 31


def test_colours_change_and_shapes_stay() -> None:
    x = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    views = [recoloured(x, torch.Generator().manual_seed(seed)) for seed in range(40)]
    assert all(view.shape == x.shape and view.isfinite().all() for view in views)
    grey = [bool(torch.equal(view[:, 0], view[:, 1]) and torch.equal(view[:, 1], view[:, 2])) for view in views]
    assert 2 <= sum(grey) <= 16
    same_or_flipped = [any(torch.equal(view, one) for one in (x, x.flip(3))) for view in views]
    assert 2 <= sum(same_or_flipped) <= 16  # neither jitter (0.8) nor grey (0.2)


def test_grey_images_can_be_recoloured_too() -> None:
    x = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    assert all(recoloured(x, torch.Generator().manual_seed(seed)).shape == x.shape for seed in range(10))


def module(second_view: str = "rotation", view_values: str = "normalised") -> TwoViews:
    return TwoViews(torch.nn.Identity(), tiny_local(), 0, second_view=second_view, view_values=view_values)


def drawn(client: Client, second_view: str = "rotation") -> list[Batch]:
    views = 2 if second_view == "own" else 1
    return [module(second_view).draw(batch, client) for batch in client.batches(5, 2, views=views)]


@pytest.fixture
def client() -> Client:
    return TinyWorld().scenario.client(0, t=0, memory={}, labels=None, seed=0, device=CPU)


def test_every_batch_has_its_own_mix_and_angle(client: Client) -> None:
    batches = drawn(client)
    mixes = [float(batch.extras["mix"]) for batch in batches]
    assert len(set(mixes)) == len(mixes)
    assert all(0 <= mix < 1 for mix in mixes)
    assert all(len(batch.views) == 2 and batch.views[1].shape == batch.x.shape for batch in batches)
    assert any(not torch.equal(*batch.views) for batch in batches)
    again = drawn(client)
    assert all(torch.equal(a.views[1], b.views[1]) for a, b in zip(batches, again, strict=True))


def test_corners_are_grey_or_black() -> None:
    """What a rotation uncovers is 0 after normalisation, or the black that normalisation makes of pixel value 0."""
    transform = Transform((0.5,), (0.25,))
    x = 0.1 + torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    grey, dark = (
        module(view_values=values)._changed(x, transform, torch.Generator().manual_seed(1))
        for values in ("normalised", "pixels")
    )
    uncovered = grey == 0
    assert uncovered.any()
    assert torch.allclose(dark[uncovered], torch.tensor(-2.0))
    assert torch.allclose(dark[~uncovered], grey[~uncovered], atol=1e-6)


def test_own_is_a_second_draw_of_the_data_sets_augmentation(client: Client) -> None:
    flipping = replace(client.data.transform, augmentations=(HorizontalFlip(),))
    flipped = replace(client, data=replace(client.data, transform=flipping))
    batches = drawn(flipped, second_view="own")
    pairs = [(a, b) for batch in batches for a, b in zip(*batch.views, strict=True)]
    assert all(torch.equal(a, b) or torch.equal(a, b.flip(2)) for a, b in pairs)
    assert 0 < sum(torch.equal(a, b) for a, b in pairs) < len(pairs)


def test_equal_views_are_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world = TinyWorld()
    play(fedlsr(world, second_view="own"), world, rounds=1)
    assert caplog.text.count("views are equal") == 1


# Rounds


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 0.0},
        {"entropy_weight": 0.6},
        {"second_view": "colour"},
        {"temperature": 1.0},
        {"classification": "cross_entropy"},
        {"divergence": "class_sum"},
        {"entropy": "both_views", "entropy_weight": 0.6},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_setting_matters(change: dict[str, Any]) -> None:
    world = TinyWorld("noisy")
    base = {"entropy_weight": 0.6} if "entropy" in change else {}
    ours, other = (
        play(fedlsr(world, **{"warmup": 0, **settings}), world, rounds=1)[-1].state.weights
        for settings in (base, change)
    )
    assert not same(dict(ours), dict(other))
    assert all_finite(other)


@pytest.mark.parametrize("second_view", ["rotation", "colour", "own"])
def test_close_to_serial_under_the_vectorised_executor(second_view: str) -> None:
    world = TinyWorld("one_sample")
    method = fedlsr(world, 6, "fedlsr_plus", second_view=second_view)
    plain = play(method, world, rounds=3, cohort=6)
    executor = Vectorised(world.scenario)
    fast = play(method, world, rounds=3, cohort=6, executor=executor)
    left, right = plain[-1].state.weights, fast[-1].state.weights
    assert max(float((left[name] - right[name]).abs().max()) for name in left) < 1e-4
    assert not executor.said, "everything was vectorised"


@pytest.mark.parametrize("method", ["fedlsr", "fedlsr_plus"])
@pytest.mark.parametrize(("dataset", "warmup"), [("ich", 20), ("isic2019", 60)])
def test_presets(method: str, dataset: str, warmup: int) -> None:
    cfg = compose([f"method={method}", f"dataset={dataset}", f"preset={method}_{dataset}"]).cfg
    assert (cfg.protocol, cfg.method.warmup, cfg.method.second_view) == ("paper", warmup, "own")
    assert (cfg.local.lr, cfg.local.batch_size, cfg.method.gamma) == (0.0003, 16, 0.4)
