"""Predictions of many networks in one pass: those of `predict`, one by one, up to rounding."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fnll.executors import predictions
from fnll.executors.jobs import met
from fnll.executors.predictions import kind_of, predict_together
from fnll.images import HorizontalFlip, Transform
from fnll.local import Predict
from fnll.models import Network, mlp, small_cnn
from fnll.net import Net
from fnll.testing import TinyWorld
from fnll.types import CPU

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


def test_what_cannot_be_vectorised_is_left_open():
    assert predict_together(asked(Net.of(branching, num_classes=4, input_shape=SHAPE))) == [None] * 3
