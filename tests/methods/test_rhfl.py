"""RHFL: confidence weights by hand, what they are made from, and how they reach the mean."""

from functools import cache

import pytest
import torch
from torch import Tensor

from fnll.errors import UserError
from fnll.executors import Serial, jobs
from fnll.executors.vectorised import Vectorised
from fnll.federation import federate
from fnll.harness.config import compose
from fnll.methods.rhfl import confidence_weights, relative_confidence
from fnll.testing import Recording, TinyWorld, play, same, subject_of
from fnll.tools import predict, symmetric_cross_entropy
from fnll.types import CPU
from fnll.weights import mean

DTYPES = (torch.float32, torch.float64)
subject = cache(subject_of)  # composing a config takes longer than a tiny run


def numbers(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_by_hand(dtype: torch.dtype) -> None:
    # Losses fall from 2 to 1, 1.6 and 1.9: Q = (1, 0.25, 0.052632), shares Q/ΣQ = (0.767677, 0.191919, 0.040404),
    # W = softmax(0.5 + 0.5 · shares).
    found = confidence_weights(numbers(2, 2, 2, dtype=dtype), numbers(1, 1.6, 1.9, dtype=dtype), 0.5)
    assert found.dtype == dtype
    assert found.tolist() == pytest.approx([0.408999, 0.306689, 0.284313], abs=1e-6)
    assert found.sum().item() == pytest.approx(1)


def test_qualities_are_signed_unless_clipped() -> None:
    # The second loss rises from 1 to 2: Q = (1, −0.5, 0.111111), ΣQ = 0.611111, shares (1.636364, −0.818182, 0.181818).
    before, now = numbers(2, 1, 1), numbers(1, 2, 0.9)
    assert confidence_weights(before, now, 0.5).tolist() == pytest.approx([0.562963, 0.164999, 0.272038], abs=1e-6)
    # Clipped: Q = (1, 0, 0.111111), shares (0.9, 0, 0.1), W = softmax(0.45, 0, 0.05).
    clipped = confidence_weights(before, now, 0.5, "clipped")
    assert clipped.tolist() == pytest.approx(numbers(0.45, 0, 0.05).softmax(0).tolist(), abs=1e-9)


def test_where_all_losses_rise_the_sign_cancels() -> None:
    """A property of the published formula, not a wish: who got worst is then trusted most. Clipped, nobody is."""
    before, now = numbers(1, 1), numbers(4, 2)  # Q = (−0.75, −0.5), shares (0.6, 0.4)
    assert confidence_weights(before, now, 1.0).tolist() == pytest.approx(numbers(0.6, 0.4).softmax(0).tolist())
    assert confidence_weights(before, now, 1.0, "clipped").tolist() == [0.5, 0.5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("before", "now"),
    [
        ((2, 2, 2), (2, 2, 2)),  # no change: ΣQ = 0
        ((2, 1, 1), (1, 2, 2)),  # Q = (1, −0.5, −0.5) cancel
        ((0, 0, 0), (0, 0, 0)),
        ((float("nan"), 1, 1), (1, 1, 1)),
    ],
)
def test_shares_that_mean_nothing_give_uniform_weights(
    before: tuple[float, ...], now: tuple[float, ...], dtype: torch.dtype
) -> None:
    found = confidence_weights(numbers(*before, dtype=dtype), numbers(*now, dtype=dtype), 0.5)
    assert found.tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_loss_of_zero_has_all_the_quality(dtype: torch.dtype) -> None:
    found = confidence_weights(numbers(100, 1, 1, dtype=dtype), numbers(0, 1, 0.5, dtype=dtype), 0.5)
    assert found.tolist() == pytest.approx(numbers(0.5, 0, 0).softmax(0).tolist(), abs=1e-6)


def test_one_client_and_no_influence() -> None:
    assert confidence_weights(numbers(2), numbers(1), 0.5).tolist() == [1]
    assert confidence_weights(numbers(2, 3), numbers(1, 1), 0.0).tolist() == [0.5, 0.5]


def test_positive_qualities_keep_weights_within_a_factor_of_e_to_the_eta() -> None:
    g = torch.Generator().manual_seed(0)
    now = torch.rand(50, generator=g, dtype=torch.float64) + 0.1
    before = now * (1 + torch.rand(50, generator=g, dtype=torch.float64))
    weights = confidence_weights(before, now, 0.5)
    assert float(weights.max() / weights.min()) < torch.e**0.5


def test_clients_without_an_earlier_loss_count_like_the_average() -> None:
    nan = float("nan")
    found = relative_confidence(numbers(2, nan, 2, 2), numbers(1, 5, 1.6, 1.9), 0.5, "signed")
    known = numbers(0.408999, 0.306689, 0.284313) * 3  # their mean is 1
    expected = torch.tensor([known[0], 1.0, known[1], known[2]])
    assert (found * expected.max()).tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert relative_confidence(numbers(nan, nan), numbers(1, 2), 0.5, "signed").tolist() == [1, 1]


# The method


def ledgers(world: TinyWorld, rounds: int = 3, cohort: int = 6, **settings):
    method = subject("rhfl").method(world, cohort=cohort, **settings)
    executor = Recording(world.scenario)
    rows = list(federate(method, executor, world.public, budget=rounds * cohort, seed=0))
    return method, rows, executor.seen


def test_the_mean_is_weighed_by_the_losses_of_two_rounds() -> None:
    world = TinyWorld("noisy")
    method, rows, seen = ledgers(world)
    (first, _), (second, ledger), *_ = rows
    models = [update.weights for _, update in seen[0]]
    assert same(dict(first.state.weights), dict(mean(models))), "round 0: uniform"
    before, now = (torch.stack([update.report["loss"] for _, update in part]) for part in seen[:2])
    assert torch.equal(first.state.losses, before)
    weights = confidence_weights(before, now, method.eta)
    assert len(set(weights.tolist())) == 6
    assert list(ledger.records["agg_weights"].values()) == pytest.approx(weights.tolist())
    expected = mean([update.weights for _, update in seen[1]], weights.tolist())
    for name, value in second.state.weights.items():
        torch.testing.assert_close(value, expected[name])


@pytest.mark.parametrize("measure", ["trained", "received"])
def test_the_reported_loss_is_that_of_the_model_named(measure: str) -> None:
    world = TinyWorld("noisy")
    method, _, seen = ledgers(world, rounds=1, measure=measure)
    assert len(seen[0]) == 6
    for call, update in seen[0]:
        client = world.scenario.client(call.client, t=0, memory={}, labels=None, seed=0, device=CPU)
        judged = update.weights if measure == "trained" else call.message["weights"]
        logits = predict(method.net.load(judged), client).double()
        expected = symmetric_cross_entropy(logits, client.data.y, 0.1, 1.0)
        assert update.report["loss"].item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    "settings",
    [
        {"symmetric": False},
        {"eta": 5.0},
        {"measure": "received"},
        {"sample_counts": True},
        {"alpha": 1.0},
        {"beta": 0.1},
    ],
    ids=str,
)
def test_each_setting_changes_something(settings: dict[str, object]) -> None:
    world = TinyWorld("one_sample")  # clients of different sizes
    plain = play(subject("rhfl").method(world, cohort=6), world, rounds=3, cohort=6)[-1]
    other = play(subject("rhfl").method(world, cohort=6, **settings), world, rounds=3, cohort=6)[-1]
    assert not same(dict(plain.state.weights), dict(other.state.weights))


def test_clipping_matters_once_a_loss_rises() -> None:
    world = TinyWorld("all_noisy")
    found = [
        play(subject("rhfl").method(world, cohort=6, quality=quality), world, rounds=6, cohort=6)[-1].state
        for quality in ("signed", "clipped")
    ]
    assert not same(dict(found[0].weights), dict(found[1].weights))


def test_without_its_ideas_it_is_fedavg_also_with_clients_of_different_sizes() -> None:
    world = TinyWorld("one_sample")
    reference = play(subject("fedavg").method(world), world)[-1].state.weights
    ours = subject("rhfl").method(world, symmetric=False, eta=0.0, sample_counts=True)
    assert same(dict(play(ours, world)[-1].state.weights), dict(reference))


def test_measuring_on_augmented_images_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(jobs, "predict", lambda *told: asked.append(told[2]) or predict(*told))
    world = TinyWorld()
    play(subject("rhfl").method(world, eval_augment=True), world, rounds=1, executor=Serial(world.scenario))
    assert asked == [True] * 3


@pytest.mark.parametrize("kind", ["noisy", "one_sample", "single_class", "empty"])
def test_vectorised_close_to_serial(kind: str) -> None:
    world = TinyWorld(kind)
    method = subject("rhfl").method(world, cohort=6)
    executor = Vectorised(world.scenario)
    plain = play(method, world, rounds=4, cohort=6)
    fast = play(method, world, rounds=4, cohort=6, executor=executor)
    assert not executor.said, "everything was vectorised"
    assert [s.totals for s in plain] == [s.totals for s in fast]
    gaps = [
        float((plain[-1].state.weights[name] - fast[-1].state.weights[name]).abs().max())
        for name in plain[-1].state.weights
    ]
    assert max(gaps) < 2e-3


def test_a_negative_eta_is_refused() -> None:
    with pytest.raises(UserError, match=r"method\.eta must be at least 0"):
        subject("rhfl").method(TinyWorld(), eta=-0.5)


@pytest.mark.parametrize(("dataset", "rounds"), [("ich", 100), ("isic2019", 300)])
def test_presets_are_fednoros(dataset: str, rounds: int) -> None:
    cfg = compose(["method=rhfl", f"dataset={dataset}", "preset=paper"]).cfg
    assert (cfg.protocol, cfg.rounds, cfg.num_clients, cfg.fraction) == ("paper", rounds, 20, 1.0)
    assert (cfg.local._target_, cfg.local.lr) == ("fnll.local.adam", 3e-4)
    assert (cfg.method.eta, cfg.method.alpha, cfg.method.beta) == (0.5, 0.1, 1.0)
