"""Predictions of many networks in one pass: those of `predict`, one by one, up to rounding."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fnll.executors import predictions
from fnll.executors.habits import NotTogetherError
from fnll.executors.jobs import Started, met
from fnll.executors.predictions import kind_of, predict_together
from fnll.executors.program import OFTEN
from fnll.executors.vectorised import Stacker
from fnll.images import HorizontalFlip, Transform
from fnll.local import Predict
from fnll.models import Network, mlp, small_cnn
from fnll.net import Net
from fnll.seeding import lent
from fnll.testing import TinyWorld
from fnll.types import CPU, Call, Update

WORLD = TinyWorld("noisy")
SHAPE = (1, 4, 4)
NETS = {
    "mlp": Net.of(mlp, num_classes=4, input_shape=SHAPE, hidden=[5]),
    "small_cnn": Net.of(small_cnn, num_classes=4, input_shape=SHAPE, width=2, hidden=5),
}


def client(k, samples=None, transform=None):
    one = WORLD.scenario.client(k, t=0, memory={}, labels=None, seed=k, device=CPU)
    one = one if samples is None else one.subset(torch.arange(samples))
    return one if transform is None else replace(one, data=replace(one.data, transform=transform))


def asked(net, sizes=(12, 3, 7), **options):
    return [Predict(net.load(net.fresh(k)), client(k, size), **options) for k, size in enumerate(sizes)]


@pytest.mark.parametrize("net", NETS.values(), ids=NETS.keys())
@pytest.mark.parametrize("size", [512, 2])
def test_every_network_answers_for_its_own_client(net, size):
    requests = asked(net, size=size)
    assert len({kind_of(request) for request in requests}) == 1
    for request, found in zip(requests, predict_together(requests), strict=True):
        torch.testing.assert_close(found, met(request), rtol=1e-5, atol=1e-6)


def test_predictions_of_one_network_alone_leave_the_doubts_about_company():
    """Ten lone ones must not stand for the ten comparisons."""
    stacker, net = Stacker(), NETS["mlp"]

    def job(client):
        yield Predict(net.load(net.fresh(0)), client)
        return Update(trace={})

    for _ in range(OFTEN):
        with lent():
            stacker.done([Started(WORLD.scenario, Call(job, 0, t=0, message={}, memory={}, labels=None, seed=0), CPU)])
    assert stacker.habits.of(kind_of(asked(net)[0])).times == 0


def test_company_changes_nothing_but_rounding(monkeypatch):
    requests = asked(NETS["mlp"])
    whole = predict_together(requests)
    monkeypatch.setattr(predictions, "AT_ONCE", 1)
    for one, other in zip(whole, predict_together(requests), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_random_views_are_the_ones_that_the_client_draws():
    flips = Transform((0.5,), (0.25,), (HorizontalFlip(0.5),))
    net = NETS["mlp"]
    requests = [
        Predict(net.load(net.fresh(k)), client(k, transform=flips), augment=augment, size=5)
        for k, augment in ((0, True), (1, False), (2, True))
    ]
    for request, found in zip(requests, predict_together(requests), strict=True):
        torch.testing.assert_close(found, met(request), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(met(requests[0]), met(replace(requests[0], augment=False)))


def test_networks_are_left_in_the_mode_they_were_in():
    requests = asked(NETS["mlp"])
    before = [[part.training for part in request.net.modules()] for request in requests]
    predict_together(requests)
    assert [[part.training for part in request.net.modules()] for request in requests] == before


def normalising(*, num_classes, input_shape):
    return Network(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16)), nn.Linear(16, num_classes))


def branching(*, num_classes, input_shape):
    return Deciding(nn.Flatten(), nn.Linear(16, num_classes))


class Deciding(Network):
    def forward(self, x):
        logits = super().forward(x)
        return logits if logits.sum() > 0 else -logits


def test_what_looks_at_the_batch_or_at_nothing_is_met_alone():
    (request,) = asked(Net.of(normalising, num_classes=4, input_shape=SHAPE), sizes=(3,))
    assert kind_of(request) is None
    (request,) = asked(NETS["mlp"], sizes=(0,))
    assert kind_of(request) is None


def test_what_cannot_be_vectorised_says_so():
    with pytest.raises(RuntimeError, match="vmap"):
        predict_together(asked(Net.of(branching, num_classes=4, input_shape=SHAPE)))


def leaky(*, num_classes, input_shape, slope):
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.LeakyReLU(slope)), nn.Linear(8, num_classes))


def dilated(*, num_classes, input_shape, padding, dilation):
    layers = nn.Conv2d(1, 2, 2, padding=padding, dilation=dilation), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return Network(nn.Sequential(*layers), nn.Linear(2, num_classes))


class Scaled(Network):
    def __init__(self, num_classes, scale):
        super().__init__(nn.Flatten(), nn.Linear(16, num_classes))
        self.scale = scale

    def forward(self, x):
        return self.scale * super().forward(x)


def scaled(*, num_classes, input_shape, scale):
    return Scaled(num_classes, scale)


@pytest.mark.parametrize(
    ("build", "one", "other"),
    [
        (leaky, {"slope": 0.01}, {"slope": 0.9}),
        (dilated, {"padding": 0, "dilation": 1}, {"padding": 1, "dilation": 2}),
        (scaled, {"scale": 1.0}, {"scale": 2.0}),
    ],
)
def test_networks_that_compute_otherwise_are_of_another_kind(build, one, other):
    nets = [Net.of(build, num_classes=4, input_shape=SHAPE, **settings) for settings in (one, one, other)]
    first, same, different = [kind_of(request) for net in nets for request in asked(net, sizes=(3,))]
    assert first == same != different


def test_a_network_that_somebody_listens_to_is_met_alone():
    (request,) = asked(NETS["mlp"], sizes=(3,))
    assert kind_of(request) is not None
    request.net.head.register_forward_hook(lambda module, inputs, output: 2 * output)
    assert kind_of(request) is None


class Centred(Network):
    """Looks at its batch, which nothing but its answers tells."""

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x - x.mean(0))


def centred(*, num_classes, input_shape):
    return Centred(nn.Flatten(), nn.Linear(16, num_classes))


@pytest.mark.parametrize(("sizes", "size"), [((12, 3, 7), 512), ((6, 6, 6), 4)], ids=["padding", "parts"])
def test_a_network_that_looks_at_its_batch_is_found_out(sizes, size):
    with pytest.raises(NotTogetherError, match="depends on the others"):
        predict_together(asked(Net.of(centred, num_classes=4, input_shape=SHAPE), sizes=sizes, size=size))


def test_weights_that_are_not_finite_disturb_nobody():
    requests = asked(NETS["mlp"])
    with torch.no_grad():
        requests[1].net.head.weight.fill_(float("nan"))  # the shortest, which is looked at more closely
    found = predict_together(requests)
    assert found[1].isnan().all()
    for k in (0, 2):
        torch.testing.assert_close(found[k], met(requests[k]), rtol=1e-5, atol=1e-6)
