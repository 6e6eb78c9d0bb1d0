"""ARFL: lines, confidences and shares by hand, equal clients, small federations, and what it does to an outlier."""

import logging

import pytest
import torch

from fnll.errors import UserError
from fnll.executors.vectorised import Vectorised
from fnll.federation import Federation
from fnll.harness.config import compose
from fnll.methods import arfl
from fnll.methods.arfl import ARFL, line_and_confidence, repeated_median, residual_reweighting
from fnll.methods.fedavg import FedAvg
from fnll.testing import TinyWorld, play, same, subject_of
from fnll.types import State, Update

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
OUTLIER = [1.0, 2.5, 2.8, 4.2, 100.0]


def column(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)[:, None]


def make(world, cohort=3, **settings):
    return ARFL(**{**world.shared(cohort), "lam": 2.0, "delta": 0.1, **settings})


def test_the_line_and_the_confidences_by_hand():
    values = torch.tensor([OUTLIER], dtype=torch.float64)
    # Slopes from each point to the others have the medians 1.2833, 1.175, 1.15, 1.2333 and 40.55.
    assert repeated_median(values).item() == pytest.approx(1.233333, abs=1e-6)
    line, confidence = line_and_confidence(values, 2.0)
    # 2.8 at rank 2, so that the line is 0.3333 + 1.2333 rank
    assert line[0].tolist() == pytest.approx([0.333333, 1.566667, 2.8, 4.033333, 5.266667], abs=1e-6)
    # |r| = (.6667, .9333, 0, .1667, 94.7333): without the smallest, median .8, so τ = 1.4826 · 2.25 · .8 = 2.66868.
    # h = √(1 − 1/5 − 2²/10) = .632456 and K = 2 √(2/5) = 1.264911: the last is trusted K h τ / 94.7333.
    assert confidence[0, :4].tolist() == [1, 1, 1, 1]
    assert confidence[0, 4].item() == pytest.approx(0.022536, abs=1e-6)


@DTYPES
def test_an_outlier_is_pulled_onto_the_line_and_has_almost_no_share(dtype):
    restricted, shares = residual_reweighting(column(OUTLIER, dtype), 2.0, 0.1)
    assert restricted.dtype == shares.dtype == dtype
    assert restricted[:, 0].tolist() == pytest.approx([1, 2.5, 2.8, 4.2, 5.266667], abs=1e-6)
    # summed confidences are ω times the same deviation: squares 1 and .022536², which is .000127 of the sum
    assert shares.tolist() == pytest.approx([0.249968] * 4 + [0.000127], abs=1e-6)
    assert (shares @ restricted).item() == pytest.approx(2.625335, abs=1e-5)
    assert shares.sum().item() == pytest.approx(1)


@DTYPES
def test_a_line_without_residuals(dtype):
    restricted, shares = residual_reweighting(column([1.0, 2.0, 3.0, 4.0, 100.0], dtype), 2.0, 0.1)
    assert restricted[:, 0].tolist() == pytest.approx([1, 2, 3, 4, 5], abs=1e-6)
    assert (shares @ restricted).item() == pytest.approx(2.5, abs=1e-6)


def test_delta_says_who_is_replaced_and_lambda_who_is_trusted():
    stack = column(OUTLIER)
    assert torch.equal(residual_reweighting(stack, 2.0, 0.02)[0], stack), "ω = .0225 is above δ"
    strict = residual_reweighting(stack, 0.5, 0.1)[1]  # K h τ shrinks to a quarter of that for λ = 2
    assert strict[4] < residual_reweighting(stack, 2.0, 0.1)[1][4]
    restricted, shares = residual_reweighting(stack, 1e12, 0.1)
    assert torch.equal(restricted, stack)
    assert shares.tolist() == [0.2] * 5


def test_weights_count_by_how_much_the_confidences_in_them_differ():
    # The second weight is a perfect line: everybody is trusted, nothing is learned about anyone.
    first, second = column(OUTLIER), column([5.0, 4.0, 3.0, 2.0, 1.0])
    _, alone = residual_reweighting(first, 2.0, 0.1)
    _, both = residual_reweighting(torch.cat([first, second], dim=1), 2.0, 0.1)
    assert both.tolist() == pytest.approx(alone.tolist(), abs=1e-12)


def test_squares_of_summed_confidences_make_the_shares():
    g = torch.Generator().manual_seed(0)
    stack = torch.randn(6, 40, generator=g, dtype=torch.float64)
    _, confidence = line_and_confidence(stack.T.contiguous(), 2.0)
    summed = (confidence * confidence.std(dim=1, keepdim=True)).sum(dim=0)
    expected = summed.square() / summed.square().sum()
    assert residual_reweighting(stack, 2.0, 0.1)[1].tolist() == pytest.approx(expected.tolist())
    assert expected.max() > 1.1 * expected.min()


def test_coordinates_are_fitted_in_pieces_with_the_same_result(monkeypatch):
    stack = torch.randn(5, 33, generator=torch.Generator().manual_seed(1))
    whole = residual_reweighting(stack, 2.0, 0.1)
    monkeypatch.setattr(arfl, "SLOPES_AT_ONCE", 100)  # four coordinates at a time
    parts = residual_reweighting(stack, 2.0, 0.1)
    assert torch.equal(whole[0], parts[0])
    assert torch.allclose(whole[1], parts[1])


@pytest.mark.parametrize("n", [4, 5, 10])
def test_the_order_of_clients_does_not_matter_also_among_equal_ones(n):
    g = torch.Generator().manual_seed(n)
    stack = torch.randn(n, 60, generator=g, dtype=torch.float64)
    stack[3] = stack[1]
    stack[0, :30] = stack[2, :30]
    restricted, shares = residual_reweighting(stack, 2.0, 0.1)
    assert shares[3].item() == pytest.approx(shares[1].item(), abs=1e-15)
    assert torch.equal(restricted[1], restricted[3])
    order = torch.randperm(n, generator=g)
    mixed, mixed_shares = residual_reweighting(stack[order], 2.0, 0.1)
    assert torch.equal(mixed, restricted[order])
    assert torch.allclose(mixed_shares, shares[order], atol=1e-14)


@DTYPES
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_equal_clients_are_averaged(n, dtype):
    stack = torch.randn(1, 20, generator=torch.Generator().manual_seed(0), dtype=dtype).expand(n, -1)
    restricted, shares = residual_reweighting(stack, 2.0, 0.1)
    assert torch.equal(restricted, stack)
    assert shares.tolist() == pytest.approx([1 / n] * n)


THREE = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("stack", [torch.tensor([[1.0, 5.0], [9.0, -5.0]]), torch.zeros(4, 0), THREE])
def test_who_cannot_be_off_shares_equally(stack):
    # Any line fits two values; with three and λ = 2, K h is more than any scaled residual; without weights, nothing is.
    restricted, shares = residual_reweighting(stack, 2.0, 0.1)
    assert torch.equal(restricted, stack)
    assert shares.tolist() == pytest.approx([1 / len(stack)] * len(stack))


# The server


def aggregate(states, **settings):
    world = TinyWorld()
    fed = Federation(world.public, None, budget=1, seed=0, t=0)
    updates = [Update(state, client=k, size=10**k) for k, state in enumerate(states)]
    return make(world, **settings).aggregate(State({}), updates, fed), fed._ledger.records["agg_weights"]


def state(value, count=3):
    return {"w": torch.tensor([[value]]), "seen": torch.tensor(count), "temperature": torch.tensor(value)}


def test_numbers_without_a_dimension_are_averaged_by_the_shares():
    found, shares = aggregate([state(value, count) for count, value in enumerate(OUTLIER)])
    assert found["w"].item() == pytest.approx(2.625335, abs=1e-5)
    assert found["temperature"].item() == pytest.approx(0.249968 * 10.5 + 0.000127 * 100, abs=1e-4), "not restricted"
    assert found["seen"].item() == 1  # 0.249968 (0 + 1 + 2 + 3) + 0.000127 · 4 = 1.5, truncated
    assert list(shares.values()) == pytest.approx([0.249968] * 4 + [0.000127], abs=1e-6), "sizes do not count"


def test_models_that_are_not_finite_are_left_out():
    bad = {**state(1.0), "w": torch.tensor([[float("nan")]])}
    found, shares = aggregate([state(1.0), bad, state(2.0)])
    assert found["w"].item() == 1.5
    assert shares == {0: 0.5, 2: 0.5}
    lost, _ = aggregate([bad, bad])
    assert lost["w"].isnan().all(), "a run in which everyone diverged is seen to have diverged"


@pytest.mark.parametrize("cohort", [1, 2])
def test_too_few_clients_to_judge_are_averaged(cohort):
    world = TinyWorld("balanced")
    ours, reference = (play(m, world, cohort=cohort)[-1] for m in (make(world, cohort), FedAvg(**world.shared(cohort))))
    assert same(dict(ours.state.weights), dict(reference.state.weights))


def test_it_is_something_else_where_clients_can_be_off():
    world = TinyWorld("noisy")
    ours, reference = (play(m, world, cohort=6)[-1] for m in (make(world, 6), FedAvg(**world.shared(6))))
    assert not same(dict(ours.state.weights), dict(reference.state.weights))


def test_an_attacker_does_less_harm_than_to_the_mean():
    honest = [{"w": torch.randn(200, generator=torch.Generator().manual_seed(k))} for k in range(9)]
    target = torch.stack([s["w"] for s in honest]).mean(0)
    found, shares = aggregate([*honest, {"w": torch.full((200,), 30.0)}])
    assert (found["w"] - target).abs().mean() < 0.2 < (target * 0.9 + 3.0 - target).abs().mean()
    assert shares[9] < 0.01


def test_close_to_serial_when_vectorised(caplog):
    caplog.set_level(logging.INFO)
    world = TinyWorld("one_sample")
    method, fast = make(world, 6), Vectorised(world.scenario)
    plain, quick = (play(method, world, rounds=4, cohort=6, executor=e)[-1].state.weights for e in (None, fast))
    assert max(float((plain[name] - quick[name]).abs().max()) for name in plain) < 2e-3
    assert not fast.said, "everything was vectorised"


def test_settings_are_checked():
    assert dict(subject_of("arfl").settings) == {"lam": 2.0, "delta": 0.1}
    with pytest.raises(UserError, match=r"method\.lam must be greater than 0, got 0"):
        make(TinyWorld(), lam=0.0)
    with pytest.raises(UserError, match=r"method\.delta must be in \[0, 1\], got 2"):
        make(TinyWorld(), delta=2.0)


@pytest.mark.parametrize(("dataset", "rate"), [("cifar10", 0.01), ("cifar100", 0.01), ("clothing1m", 0.003)])
def test_presets(dataset, rate):
    cfg = compose(["method=arfl", f"dataset={dataset}", f"preset=arfl_{dataset}"]).cfg
    assert (cfg.protocol, cfg.local.lr, cfg.local.momentum, cfg.local.epochs) == ("paper", rate, 0.5, 5)
    assert (cfg.method.lam, cfg.method.delta) == (2.0, 0.1)
