"""The order in which data is stored must not matter where it should not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fnll.errors import UserError
from fnll.harness import observer as observing
from fnll.harness import prepare as preparing
from fnll.harness.config import compose
from fnll.harness.evaluate import TestSet
from fnll.harness.prepare import prepare
from fnll.harness.run_folder import RunFolder
from fnll.images import InMemory, Transform
from fnll.models import cnn4conv, small_cnn
from fnll.net import batch_dependent
from fnll.scenario import Dataset, build
from fnll.scenario.noise.models import NoNoise
from fnll.scenario.noise.official import RhoTauOfficial
from fnll.scenario.partition.official import DirichletOfficial, IidOfficial
from fnll.scenario.partition.partitions import Iid
from fnll.seeding import scoped, walk
from fnll.testing import TinyWorld, subject_of
from fnll.tools import predict
from fnll.types import Client, Samples

PLAIN = Transform((0.0,), (1.0,))


def client(n: int = 40) -> Client:
    """Samples of two classes, stored class by class; the classes differ in brightness."""
    labels = torch.arange(n) * 2 // n
    pixels = (torch.randint(0, 100, (n, 1, 16, 16)) + 100 * labels.view(n, 1, 1, 1)).to(torch.uint8)
    return Client(0, 0, Samples(InMemory(pixels), torch.arange(n), labels, labels, PLAIN, 2), {}, seed=1)


def network(build, **settings) -> nn.Module:
    with scoped(0):
        return build(num_classes=2, input_shape=(1, 16, 16), **settings)


def test_only_batchnorm_without_running_statistics_depends_on_the_batch():
    assert batch_dependent(network(cnn4conv, width=4))
    assert not batch_dependent(network(small_cnn, width=4, hidden=4))
    assert not batch_dependent(nn.Sequential(nn.BatchNorm2d(3), nn.InstanceNorm2d(3), nn.GroupNorm(1, 3)))


def test_predictions_of_a_batch_dependent_network_come_from_mixed_batches_and_in_the_samples_order():
    net, who = network(cnn4conv, width=4), client()
    order = walk(len(who))
    images = PLAIN.plain(who.data.images.take(order))
    expected = torch.empty(len(who), 2)
    with torch.no_grad():
        expected[order] = torch.cat([net.eval()(part) for part in images.split(10)])
    assert torch.equal(predict(net, who, size=10), expected)
    seen = [batch.y.unique().tolist() for batch in who.scan(10, shuffled=True)]
    assert seen == [[0, 1]] * 4  # in stored order every batch is of one class
    assert [batch.y.unique().tolist() for batch in who.scan(10)] == [[0], [0], [1], [1]]


def test_other_networks_are_shown_the_samples_as_they_are_stored():
    net, who = network(small_cnn, width=4, hidden=4), client()
    with torch.no_grad():
        expected = torch.cat([net.eval()(part) for part in PLAIN.plain(who.data.images.pixels).split(10)])
    assert torch.equal(predict(net, who, size=10), expected)


def test_a_shuffled_test_set_holds_the_same_images_with_their_labels():
    data = client().data
    labels = data.y
    for limit in (None, 0):  # ready in memory, and prepared batch by batch
        with pytest.MonkeyPatch.context() as patch:
            if limit is not None:
                patch.setattr("fnll.harness.evaluate.IN_MEMORY", limit)
            test = TestSet(data.images, labels, PLAIN, 2, 10, torch.device("cpu"), shuffled=True)
        batches = list(test.batches())
        assert all(len(y.unique()) == 2 for _, y in batches)
        assert torch.equal(torch.cat([x for x, _ in batches]), PLAIN.plain(data.images.take(walk(40))))
        assert torch.equal(torch.cat([y for _, y in batches]), labels[walk(40)])
        assert all(len(y.unique()) == 2 for _, y in test.sampled(20).batches())


@pytest.mark.parametrize(("model", "renamed"), [("cnn4conv", True), ("small_cnn", False)])
def test_the_walk_is_in_the_ids_of_affected_runs_only(model, renamed, monkeypatch):
    words = ["dataset=synthetic", "dataset.size=16", "dataset.samples=40", "dataset.test_samples=10", "num_clients=2"]
    request = compose([*words, f"model={model}"])
    before = prepare(request).run_id
    monkeypatch.setattr(preparing, "WALK", "another")
    assert (prepare(request).run_id != before) == renamed


def by_class(rearranged: str | None) -> Dataset:
    labels = torch.arange(200) // 20
    images = InMemory(torch.zeros(200, 1, 2, 2, dtype=torch.uint8))
    return Dataset("a copy", images, labels, images, labels, 10, PLAIN, rearranged=rearranged)


OFFICIAL = {
    "positions": (DirichletOfficial(5.0, 1, None), NoNoise(), "splits blocks of positions"),
    "partition": (IidOfficial(13), NoNoise(), "partition.legacy_seed=13"),
    "noise": (Iid(1), RhoTauOfficial(0.5, 0.5, "all", 13), "noise.legacy_seed=13"),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_draws_on_rearranged_data_are_refused(name):
    partition, noise, what = OFFICIAL[name]
    with pytest.raises(UserError, match=f"{what}.*a copy is stored class by class.*; type this"):
        build(by_class("type this"), partition, noise, num_clients=2, seed=0)
    build(by_class(None), partition, noise, num_clients=2, seed=0)


def test_official_laws_that_no_order_can_change_are_not_refused():
    noise = RhoTauOfficial(0.5, 0.5, "all", None)
    scenario, _ = build(by_class("type this"), IidOfficial(None), noise, num_clients=2, seed=0)
    assert np.unique(np.concatenate(scenario.shards)).size == 200


@pytest.mark.parametrize(("model", "mixed"), [("cnn4conv", True), ("small_cnn", False)])
def test_a_run_judges_batch_dependent_networks_on_mixed_batches(model, mixed, tmp_path, monkeypatch):
    """Test set, held-out part and diagnostics of a whole run, not only the functions that can."""
    words = [
        "method=fedavg", f"model={model}", "dataset=synthetic", "dataset.size=16", "dataset.validation=0.2",
        "num_clients=3", f"runs_dir={tmp_path}",
    ]  # fmt: skip
    told = []
    monkeypatch.setattr(observing, "Diagnostics", lambda *_, shuffled, **__: told.append(shuffled))
    run = prepare(compose(words))
    observer = observing.Observer(run, RunFolder(tmp_path), None, [], overlap=False)
    told += [observer.test.shuffled, observer.validation.shuffled]
    assert told == [mixed] * 3


def test_rofl_sees_its_samples_in_mixed_batches():
    """Features by the batch statistics of mixed batches, handed on in the samples' order."""
    who = client()
    net = network(cnn4conv, width=4)
    method = replace(subject_of("rofl").method(TinyWorld()), eval_augment=False, eval_batch_size=10)
    _, logits = method._seen(net, who)
    assert torch.equal(logits, predict(net, who, size=10))
