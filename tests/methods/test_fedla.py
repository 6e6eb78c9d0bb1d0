import pytest
import torch
from torch import Tensor, nn

from fnll.executors import Serial
from fnll.local import Classifier
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedla import FedLA, adjusted_cross_entropy
from fnll.testing import TinyWorld, play, same, subject_of, tiny_local
from fnll.types import CPU, Batch


class Fixed(nn.Module):
    """A network that answers with its only parameter, whatever it sees."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


def batch(*labels: int) -> Batch:
    n = len(labels)
    return Batch((torch.zeros(n, 1),), torch.tensor(labels), torch.arange(n), 0, 0)


def adjusted(*counts: int) -> Classifier:
    return Classifier(Fixed(1, 2, 0.5), tiny_local(), 0, adjusted_cross_entropy, counts=torch.tensor(counts))


@pytest.mark.parametrize(("label", "loss"), [(0, 0.900255), (1, 0.593402), (2, 3.192014)])
def test_loss_is_cross_entropy_of_the_adjusted_logits(label: int, loss: float) -> None:
    module = adjusted(60, 30, 10)
    assert module.loss(batch(label)).item() == pytest.approx(loss, abs=1e-6)


def test_a_class_without_samples_has_no_gradient() -> None:  # T10b
    module = adjusted(75, 25, 0)
    loss = module.loss(batch(0))
    loss.backward()
    assert loss.item() == pytest.approx(0.645056, abs=1e-6)
    assert module.net.logits.grad.tolist() == pytest.approx([-0.4754, 0.4754, 0], abs=5e-5)


def test_the_prior_is_that_of_the_labels_the_client_trains_on() -> None:
    world = TinyWorld("noisy")
    method = FedLA(**world.shared())
    client = world.scenario.client(0, t=0, memory={}, labels=None, seed=0, device=CPU)
    weights = method.net.fresh(0)
    observed = torch.bincount(world.scenario.labels[world.scenario.shards[0]], minlength=4)
    assert method.module(client, weights).facts["counts"].tolist() == observed.tolist()
    corrected = torch.tensor([0] * 5 + [3] * 7)
    assert method.module(client.with_labels(corrected), weights).facts["counts"].tolist() == [5, 0, 0, 7]


def test_clients_that_hold_every_class_equally_often_make_it_fedavg() -> None:
    world = TinyWorld("balanced")
    ours, reference = (play(method(**world.shared()), world)[-1] for method in (FedLA, FedAvg))
    assert same(dict(ours.state.weights), dict(reference.state.weights))
    assert ours.totals == reference.totals


def test_uneven_classes_make_it_something_else() -> None:
    world = TinyWorld("noisy")
    ours, reference = (play(method(**world.shared()), world)[-1] for method in (FedLA, FedAvg))
    assert not same(dict(ours.state.weights), dict(reference.state.weights))


def test_the_model_is_judged_by_plain_logits() -> None:
    world = TinyWorld("noisy")
    method = subject_of("fedla").method(world)
    state = play(method, world, rounds=1, executor=Serial(world.scenario))[-1].state
    x = torch.randn(3, *world.scenario.input_shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(method.model(state)(x), method.net.load(state.weights)(x))
