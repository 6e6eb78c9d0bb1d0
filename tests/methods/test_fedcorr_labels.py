"""What a FedCorr client computes, on tables small enough for paper and pencil."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fnll.local import Classifier
from fnll.methods.fedcorr_labels import candidates, lid_score, noisy_samples, relabelled, sample_losses
from fnll.methods.fedcorr_local import Mixup, Preprocessing
from fnll.methods.fedcorr_visits import visits, waves
from fnll.testing import TinyWorld, tiny_local
from fnll.tools import mixup
from fnll.types import CPU, Batch, Client

T5_LOSSES = torch.tensor([1.5, 2.4, 1.6, 2.3, 2.2, 1.5])
T5_NOISY = torch.tensor([False, True, False, True, True, False])
SIMPLEX = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])


def client(samples: int = 12):
    whole = TinyWorld().scenario.client(0, t=0, memory={}, labels=None, seed=7, device=CPU)
    return whole.subset(torch.arange(samples))


# Noisy samples, candidates, relabelling


def test_noisy_samples_are_those_of_the_high_component():
    assert noisy_samples(T5_LOSSES, seed=0).tolist() == T5_NOISY.tolist()  # so μ̂ = 3/6


@pytest.mark.parametrize("losses", [[0.5] * 10, [0.5], [math.nan] * 3])
def test_nothing_is_noisy_where_nothing_can_be_separated(losses):
    assert not noisy_samples(torch.tensor(losses), seed=0).any()


@pytest.mark.parametrize("pool", ["noisy_samples", "all_samples"])
def test_candidate_of_t5(pool):
    assert candidates(T5_LOSSES, T5_NOISY, 0.5, pool).tolist() == [1]  # ⌊3 · ½⌋ = 1, the largest loss


def test_candidates_come_worst_first_and_from_the_pool():
    losses = torch.tensor([9.0, 2.4, 1.6, 2.3, 2.2, 1.5])  # sample 0 has the largest loss but is not in D^n
    assert candidates(losses, T5_NOISY, 1.0, "noisy_samples").tolist() == [1, 3, 4]
    assert candidates(losses, T5_NOISY, 1.0, "all_samples").tolist() == [0, 1, 3]


def test_equal_losses_keep_their_order():
    assert candidates(torch.ones(5), torch.ones(5, dtype=torch.bool), 0.6, "noisy_samples").tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("n", "noisy", "ratio", "exact", "truncated"),
    [
        (44, 30, 0.5, 15, 14),  # 44 · (30/44) · 0.5 is a little below 15
        (500, 155, 0.5, 77, 77),  # 77.5
        (100, 100, 0.29, 29, 28),  # 0.29 · 100 is a little below 29
        (6, 0, 0.5, 0, 0),
    ],
)
def test_number_of_candidates(n, noisy, ratio, exact, truncated):
    losses, mask = torch.arange(n).float(), torch.arange(n) < noisy
    assert len(candidates(losses, mask, ratio, "noisy_samples")) == exact
    assert len(candidates(losses, mask, ratio, "all_samples")) == truncated


def test_confidence_of_exactly_theta_relabels_in_the_paper_only():
    y, logits = torch.tensor([1, 1, 1]), torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, -1.0]])  # max p: .5, .88, .73
    two = torch.tensor([0, 1])
    assert relabelled(y, logits, two, 0.5, "at_least").tolist() == [0, 0, 1]
    assert relabelled(y, logits, two, 0.5, "above").tolist() == [1, 0, 1]
    assert relabelled(y, logits, torch.arange(3), 0.8, "at_least").tolist() == [1, 0, 1]
    assert y.tolist() == [1, 1, 1]


def test_predictions_that_are_not_numbers_relabel_nothing():
    y = torch.tensor([1, 2])
    assert relabelled(y, torch.full((2, 3), torch.nan), torch.arange(2), 0.0, "at_least").tolist() == [1, 2]


# LID scores and losses


def test_lid_score_is_the_mean_over_samples():
    assert lid_score(SIMPLEX.log(), 3, None, "shrink_k") == pytest.approx(6.220300, abs=1e-4)


def test_lid_small_n():
    # four samples have three neighbours: k' = 3, or three neighbours under a numerator of 20
    assert lid_score(SIMPLEX.log(), 20, None, "shrink_k") == pytest.approx(6.220300, abs=1e-4)
    assert lid_score(SIMPLEX.log(), 20, None, "keep_k") == pytest.approx(6.220300 * 20 / 3, abs=1e-3)
    for small_n in ("shrink_k", "keep_k"):
        assert math.isnan(lid_score(SIMPLEX[:1].log(), 20, None, small_n))


def test_lid_cap_bounds_single_samples(caplog):
    # 1.519692, 1.768224, 11.66907, 9.924216; the third is cut to 10
    expected = (1.519692 + 1.768224 + 10 + 9.924216) / 4
    assert lid_score(SIMPLEX.log(), 3, 10.0, "shrink_k") == pytest.approx(expected, abs=1e-4)
    equidistant = 30 * torch.eye(3)  # each prediction equally far from the two others: LID about 4.8 million
    assert lid_score(equidistant, 2, None, "shrink_k") > 1e6
    with caplog.at_level("WARNING"):
        assert [lid_score(equidistant, 2, 77.0, "shrink_k") for _ in range(2)] == [77.0, 77.0]
    assert [r.getMessage() for r in caplog.records if "=77" in r.getMessage()] == [
        "LID values of single samples above method.lid_cap=77 count as 77"
    ]


def test_equal_predictions_have_lid_zero():
    assert lid_score(torch.zeros(4, 3), 3, None, "shrink_k") == 0.0


def test_sample_losses():
    logits, y = torch.tensor([[0.7, 0.2, 0.1]]).log().expand(3, 3), torch.arange(3)
    assert sample_losses(logits, y, "cross_entropy").tolist() == pytest.approx([0.356675, 1.609438, 2.302585], abs=1e-5)
    assert sample_losses(logits, y, "double_softmax").tolist() == pytest.approx(
        [0.767950, 1.267950, 1.367950], abs=1e-5
    )


# Objectives


class Pair(nn.Module):
    """Two weights that do not take part in the prediction, so that only the penalty moves them; C = 4."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, x):
        return x.flatten(1)[:, :4] * (1 + 0 * self.w.sum())


def batch(step: int, n: int = 5) -> Batch:
    return Batch((torch.linspace(0, 9, 16 * n).sin().view(n, 1, 4, 4),), torch.arange(n) % 4, torch.arange(n), 0, step)


def loss_of(module: Classifier, b: Batch, owner: Client) -> Tensor:
    """The loss of a batch of `owner`, after what is drawn for it."""
    return module.loss(module.draw(b, owner))


def penalty(prox: str, step: int, weight: float, start=(1.0, 2.0), samples: int = 12) -> tuple[float, list[float]]:
    """The proximal term and its gradient at w = `start` with w_g = (0, 0) or, if `weight` is negative, w_g = w."""
    net = Pair()
    net.w.data = torch.tensor(start)
    anchor = {"w": torch.zeros(2) if weight > 0 else net.w.detach().clone()}
    modules = [
        Preprocessing(net, tiny_local(), 0, alpha=0.0, anchor=anchor, weight=w, prox=prox) for w in (0.0, abs(weight))
    ]
    without, loss = (loss_of(module, batch(step), client(samples)) for module in modules)
    gradient = torch.autograd.grad(loss, net.w)[0] - torch.autograd.grad(without, net.w)[0]
    return float((loss - without).detach()), gradient.tolist()


def test_proximal_term_of_the_paper():  # β μ̂ = 5 · 0.4
    value, gradient = penalty("squared", step=0, weight=2.0)
    assert value == pytest.approx(10, abs=1e-5)
    assert gradient == pytest.approx([4, 8], abs=1e-5)


def test_proximal_term_of_the_released_code():
    value, gradient = penalty("norm_after_first_batch", step=1, weight=2.0)
    assert value == pytest.approx(4.472136, abs=1e-5)
    assert gradient == pytest.approx([0.894427, 1.788854], abs=1e-5)


@pytest.mark.parametrize(("step", "active"), [(0, False), (1, True), (2, True), (3, False), (4, True), (6, False)])
def test_released_code_skips_the_first_batch_of_every_epoch(step, active):
    value, _ = penalty("norm_after_first_batch", step, weight=2.0)  # 12 samples in batches of 5: three per epoch
    assert (value > 0) is active
    assert penalty("squared", step, weight=2.0)[0] > 0


def test_released_code_never_regularises_a_client_with_one_batch():
    assert all(penalty("norm_after_first_batch", step, 2.0, samples=4)[0] == 0 for step in range(4))


@pytest.mark.parametrize("prox", ["squared", "norm_after_first_batch"])
def test_no_pull_at_the_global_weights(prox):  # a square root would give NaN here
    value, gradient = penalty(prox, step=1, weight=-2.0)
    assert (value, gradient) == (0.0, [0.0, 0.0])


def test_mixup_mixes_inputs_and_losses():
    owner, net = client(), Pair()
    module = Mixup(net, tiny_local(), 0, alpha=1.0)
    b = batch(step=3)
    x, drawn = mixup(b.x, b.y, 1.0, owner.generator("mixup", 3))
    assert 0 < drawn.share < 1
    logits = net(x)
    expected = drawn.share * F.cross_entropy(logits, drawn.y_a) + (1 - drawn.share) * F.cross_entropy(logits, drawn.y_b)
    ours = loss_of(module, b, owner).item()
    assert ours == pytest.approx(expected.item(), abs=1e-6)
    assert ours != pytest.approx(loss_of(module, replace(b, step=4), owner).item())  # another λ


def test_alpha_zero_is_cross_entropy():
    net, b = Pair(), batch(0)
    module = Mixup(net, tiny_local(), 0, alpha=0.0)
    assert torch.equal(loss_of(module, b, client()), F.cross_entropy(net(b.x), b.y))


# Visits


@pytest.mark.parametrize(("clients", "size"), [(49, 1), (93, 1), (98, 1), (99, 1), (103, 1), (20, 10), (7, 3)])
def test_an_iteration_visits_everyone_once(clients, size):
    # 49, 93, 98, 99 and 103 are where N · (1/N) and 1/(1/N) in floating point would be off by one
    ids = list(range(5, 5 + clients))
    drawn = visits(ids, size, False, np.random.default_rng(0))
    assert [len(cohort) for cohort in drawn[:-1]] == [size] * (len(drawn) - 1)
    assert sorted(k for cohort in drawn for k in cohort) == ids
    assert [k for cohort in drawn for k in cohort] != ids
    assert drawn != visits(ids, size, False, np.random.default_rng(1))


class Scripted:
    """A generator whose choices are written down."""

    def __init__(self, *choices):
        self.choices, self.pools = list(choices), []

    def choice(self, pool, size):
        self.pools.append(list(pool))
        return np.array(self.choices.pop(0)[:size])


def test_released_code_may_draw_one_client_twice_and_another_never():
    rng = Scripted([0, 0], [3, 1])
    assert visits([0, 1, 2, 3, 4], 2, True, rng) == ((0, 0), (3, 1))  # ⌊5/2⌋ rounds; 2 and 4 are never visited
    assert rng.pools == [[0, 1, 2, 3, 4], [1, 2, 3, 4]]


def test_released_code_with_one_client_per_round_visits_everyone():
    drawn = visits(range(30), 1, True, np.random.default_rng(0))
    assert sorted(k for (k,) in drawn) == list(range(30))


def test_waves_hold_nobody_twice():
    assert waves([3, 1, 3, 2, 1, 3]) == [[3, 1, 2], [3, 1], [3]]
    assert waves([2, 1]) == [[2, 1]]
