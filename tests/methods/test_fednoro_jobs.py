"""What a client does for FedNoRo; `Tn` are the vectors that were computed by hand from the paper."""

import functools
import math
from typing import Any

import pytest
import torch
from driving import done
from torch import Tensor, nn

from fnll.local import Classifier, Fit, Predict
from fnll.methods import fednoro
from fnll.methods.fedla import adjusted_cross_entropy
from fnll.methods.fednoro import Distilled, FedNoRo
from fnll.testing import TinyWorld, same, subject_of, tiny_local
from fnll.training import fit
from fnll.types import CPU, Batch

subject = functools.cache(subject_of)


def make(world: TinyWorld, name: str = "fednoro", **settings: Any) -> FedNoRo:
    method = subject(name).method(world, **settings)
    assert isinstance(method, FedNoRo)
    return method


# The ramp


def test_official_ramp() -> None:
    method = make(TinyWorld(), "fednoro_official", warmup=10, ramp_begin=10, ramp_rounds=39)
    rounds = {0: 0.005390, 10: 0.005390, 11: 0.006943, 20: 0.050400, 25: 0.120436, 29: 0.214796, 30: 0.244177}
    rounds |= {40: 0.612984, 48: 0.797374, 49: 0.8, 99: 0.8}
    for t, expected in rounds.items():
        assert method.distillation(t) == pytest.approx(expected, abs=1e-6), t
    later = make(TinyWorld(), "fednoro_official", ramp_begin=20, ramp_rounds=100)
    assert [later.distillation(t) for t in (20, 70, 119)] == pytest.approx([0.005390, 0.229204, 0.799600], abs=1e-6)


def test_the_papers_ramp_starts_from_zero() -> None:
    method = make(TinyWorld(), ramp_begin=10, ramp_rounds=40)
    assert [method.distillation(t) for t in (0, 10, 50, 99)] == pytest.approx([0, 0, 0.8, 0.8], abs=1e-12)
    assert method.distillation(10) == 0  # exactly: then no teacher is needed
    values = [method.distillation(t) for t in range(10, 51)]
    assert values == sorted(values)
    halfway = 0.8 * (math.exp(-5 / 4) - math.exp(-5)) / (1 - math.exp(-5))
    assert method.distillation(30) == pytest.approx(halfway)


@pytest.mark.parametrize("ramp", ["paper", "official"])
def test_no_ramp_and_no_distillation(ramp: str) -> None:
    assert make(TinyWorld(), ramp=ramp, ramp_begin=3, ramp_rounds=0).distillation(3) == pytest.approx(0.8)
    assert make(TinyWorld(), ramp=ramp, kd_weight=0.0).distillation(6) == 0


# The objective


class Fixed(nn.Module):
    """A network that answers with its only parameter, whatever it sees."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


def distilled(counts: list[int], missing: Any = "paper", weight: float = 0.4) -> Distilled:
    settings = {"counts": torch.tensor(counts), "temperature": 0.8, "weight": weight, "missing": missing}
    return Distilled(Fixed(1, 2, 0.5), tiny_local(), 0, teacher=Fixed(0.5, 1.5, 1), **settings)


def batch(*labels: int) -> Batch:
    n = len(labels)
    return Batch((torch.zeros(n, 1),), torch.tensor(labels), torch.arange(n), 0, 0)


def test_teacher_is_sharpened(monkeypatch: pytest.MonkeyPatch) -> None:
    targets: list[Tensor] = []
    real = fednoro.la_kd

    def spy(logits: Tensor, y: Tensor, target: Tensor, *rest: Any) -> Tensor:
        targets.append(target)
        return real(logits, y, target, *rest)

    monkeypatch.setattr(fednoro, "la_kd", spy)
    distilled([60, 30, 10]).loss(batch(0))
    (target,) = targets
    assert target.flatten().tolist() == pytest.approx([0.157268, 0.548918, 0.293815], abs=1e-6)
    assert not target.requires_grad


@pytest.mark.parametrize(
    ("counts", "missing", "expected"),
    [
        ([60, 30, 10], "paper", 0.710211),
        ([60, 30, 10], "official", 0.710211),
        ([75, 25, 0], "official", 0.198887),
        ([75, 25, 0], "paper", 0.4 * 0.191403 + 0.6 * 0.645056),
    ],
)
def test_distilled_loss(counts: list[int], missing: str, expected: float) -> None:
    module = distilled(counts, missing)
    assert module.loss(batch(0)).item() == pytest.approx(expected, abs=1e-6)
    assert module.loss(batch(0, 0, 0)).item() == pytest.approx(expected, abs=1e-6)  # a mean over the batch


@pytest.mark.parametrize(("missing", "label"), [("paper", 0), ("official", 0), ("official", 1)])
@pytest.mark.parametrize("counts", [[60, 30, 10], [75, 25, 0]])
def test_distilled_gradient_is_that_of_the_loss(counts: list[int], missing: str, label: int) -> None:
    module = distilled(counts, missing)
    module.loss(batch(label)).backward()
    logits, step = module.net.logits, 1e-6
    for i in range(3):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                logits[i] += sign * step
                values.append(module.loss(batch(label)).item())
                logits[i] -= sign * step
        assert logits.grad[i].item() == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-6)
    if not counts[2]:
        assert logits.grad[2] == 0


def test_gradient_of_the_official_form_with_a_missing_class() -> None:
    module = distilled([75, 25, 0], "official")
    module.loss(batch(0)).backward()
    assert module.net.logits.grad.tolist() == pytest.approx([-0.1999, 0.1999, 0], abs=5e-5)
    assert module.teacher.net.logits.grad is None


def test_the_teacher_stays_in_evaluation_mode_and_at_home() -> None:
    module = distilled([60, 30, 10])
    module.train()
    assert module.net.training
    assert not module.teacher.net.training
    assert [name for name, value in module.named_parameters() if value.requires_grad] == ["net.logits"]
    assert module.configure_optimizers().param_groups[0]["params"] == [module.net.logits]
    client = TinyWorld().scenario.client(0, t=0, memory={}, labels=torch.arange(12) % 3, seed=0, device=CPU)
    trained = fit(Fit(module, client)).weights
    assert list(trained) == ["logits"]
    assert trained["logits"].tolist() != [1, 2, 0.5]
    assert module.teacher.net.logits.tolist() == [0.5, 1.5, 1]


def test_only_noisy_clients_are_taught() -> None:
    world = TinyWorld("single_class")
    client = world.scenario.client(1, t=0, memory={}, labels=None, seed=0, device=CPU)
    method = make(world, kd_missing="official", temperature=0.5)
    weights = method.net.fresh(0)
    warming_up = method.module(client, weights)
    assert type(warming_up) is Classifier
    assert warming_up.objective is adjusted_cross_entropy
    assert warming_up.facts["counts"].tolist() == [12, 0, 0, 0]
    untaught = method.module(client, weights, kd=0.0)
    batch = next(client.batches(5, 1))
    assert same(untaught.loss(batch), warming_up.loss(batch))  # bit for bit: the teacher is not asked
    taught = method.module(client, weights, kd=0.3)
    assert isinstance(taught, Distilled)
    assert (taught.weight, taught.temperature, taught.missing) == (0.3, 0.5, "official")
    assert same(dict(taught.teacher.net.state_dict()), dict(weights))


def test_without_logit_adjustment_the_prior_is_uniform() -> None:
    world = TinyWorld("single_class")
    client = world.scenario.client(1, t=0, memory={}, labels=None, seed=0, device=CPU)
    method = make(world, logit_adjustment=False)
    assert method.module(client, method.net.fresh(0)).facts["counts"].tolist() == [1, 1, 1, 1]


# The probe


def test_probe_reports_the_mean_plain_loss_of_each_class() -> None:
    world = TinyWorld("single_class")
    method = make(world)
    weights = method.net.fresh(0)
    client = world.scenario.client(1, t=0, memory={}, labels=None, seed=0, device=CPU)
    logits = method.net.load(weights).eval()(next(iter(client.scan())).x)
    losses = nn.functional.cross_entropy(logits, client.data.y, reduction="none")
    report = done(method.probe(client, weights)).report["class_losses"]
    assert report[0].item() == pytest.approx(losses.mean().item(), rel=1e-6)  # no logit adjustment: that would be 0
    assert report[1:].isnan().all()


def test_probe_without_classes_reports_one_number() -> None:
    world = TinyWorld("noisy")
    weights = make(world).net.fresh(0)
    client = world.scenario.client(0, t=0, memory={}, labels=None, seed=0, device=CPU)
    per_class = done(make(world).probe(client, weights)).report["class_losses"]
    overall = done(make(world, per_class=False).probe(client, weights)).report["class_losses"]
    assert overall.shape == (1,)
    counts = client.class_counts()
    assert overall.item() == pytest.approx(((per_class.nan_to_num() * counts).sum() / counts.sum()).item())


def test_eval_augment_shows_a_random_view() -> None:
    world = TinyWorld("noisy")
    client = world.scenario.client(0, t=0, memory={}, labels=None, seed=0, device=CPU)
    for augment in (False, True):
        method = make(world, eval_augment=augment)
        request = next(method.probe(client, method.net.fresh(0)))
        assert isinstance(request, Predict)
        assert request.augment is augment
