"""Local training: the lean loop against Lightning's Trainer and against Fabric, and what clients' batches hold."""

import copy
import gc
import weakref
from dataclasses import replace

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from by_hand import ByHand
from fnll.errors import UserError
from fnll.images import HorizontalFlip, InMemory, RandomCrop, Transform
from fnll.local import Classifier, Fit, adam
from fnll.models import small_cnn
from fnll.net import Net
from fnll.testing import TinyWorld, same, tiny_local
from fnll.training import _fabric, fit
from fnll.types import Client, Samples
from fnll.weights import snapshot

WORLD = TinyWorld()


def client(n=23, seed=3, augmentations=(), channels=1, classes=4) -> Client:
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, channels, 8, 8), generator=g).to(torch.uint8)
    y = torch.randint(0, classes, (n,), generator=g)
    transform = Transform((0.5,) * channels, (0.25,) * channels, augmentations)
    return Client(0, 0, Samples(InMemory(pixels), torch.arange(n), y, y, transform, classes), {}, seed)


def module(spec, seed=1, cls=Classifier):
    net = Net.of(small_cnn, width=4, hidden=8, num_classes=4, input_shape=(1, 8, 8))
    return cls(net.load(net.fresh(seed)), spec)


def test_the_lean_loop_ends_where_the_trainer_ends():
    spec, who = tiny_local(epochs=3, momentum=0.9), client(augmentations=(RandomCrop(1), HorizontalFlip()))
    lean = fit(Fit(module(spec), who)).weights
    reference = module(spec)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    batches = list(who.batches(spec.batch_size, spec.epochs))
    trainer.fit(reference, DataLoader(batches, batch_size=None, shuffle=False))
    assert same(lean, snapshot(reference.net))


def test_the_lean_loop_equals_fabrics():
    spec, who = tiny_local(epochs=2, clip_norm=0.5), client()
    lean = fit(Fit(module(spec), who)).weights
    managed = fit(Fit(module(replace(spec, precision="bf16-mixed")), who)).weights
    assert not same(lean, managed)  # another precision really is one
    assert same(lean, fit(Fit(module(spec, cls=ByHand), who)).weights)  # clipped, too, though it steps by itself
    assert not same(lean, fit(Fit(module(replace(spec, clip_norm=None)), who)).weights)


@pytest.mark.parametrize("cls", [Classifier, ByHand])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_nothing_of_a_client_is_kept_after_its_fit(cls, precision):
    trained = module(tiny_local(epochs=1, precision=precision), cls=cls)
    gone = weakref.ref(trained)
    fit(Fit(trained, client()))
    del trained
    gc.collect()
    assert gone() is None, "every later step would go through it, and memory would fill with networks"


def test_manual_and_automatic_optimisation_agree_in_mixed_precision():
    spec, who = tiny_local(precision="bf16-mixed"), client()
    assert same(fit(Fit(module(spec), who)), fit(Fit(module(spec, cls=ByHand), who)))


def test_the_loss_scale_of_half_precision_is_not_handed_from_client_to_client():
    cpu = torch.device("cpu")
    assert _fabric(cpu, "bf16-mixed") is _fabric(cpu, "bf16-mixed")
    assert _fabric(cpu, "16-mixed") is not _fabric(cpu, "16-mixed")


def test_half_precision_can_clip():
    fused = tiny_local(), tiny_local(precision="16-mixed", clip_norm=1.0)
    assert [spec.optimizer.keywords["fused"] for spec in fused] == [True, False]  # Lightning clips no fused optimiser


def test_clipping_bounds_the_step():
    spec = tiny_local(epochs=1, batch_size=50, lr=1.0, momentum=0.0, clip_norm=1e-3)
    net = module(spec)
    before = snapshot(net.net)
    after = fit(Fit(net, client())).weights
    moved = sum(((after[k] - before[k]) ** 2).sum() for k in after).sqrt()
    assert 0 < moved <= 1.001e-3


def test_epoch_hooks_are_called_in_order():
    calls = []

    class Watching(Classifier):
        def on_train_epoch_start(self):
            calls.append("start")

        def on_train_epoch_end(self):
            calls.append("end")

        def loss(self, batch):
            calls.append(batch.epoch)
            return super().loss(batch)

    fit(Fit(module(tiny_local(epochs=2, batch_size=20), cls=Watching), client(23)))
    assert calls == ["start", 0, 0, "end", "start", 1, 1, "end"]


def test_several_optimizers_are_each_stepped():
    class Two(Classifier):
        def __init__(self, net, spec, t=0):
            super().__init__(net, spec, t)
            self.automatic_optimization = False

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net.body, self.net.head)]

        def training_step(self, batch, index):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            for optimizer in self.optimizers():
                optimizer.step()

    both = module(tiny_local(), cls=Two)
    before = snapshot(both.net)
    after = fit(Fit(both, client())).weights
    assert all(not torch.equal(before[name], after[name]) for name in before)


def test_a_batch_that_batch_norm_cannot_take_is_left_out():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4))

        def forward(self, x):
            return self.inner(x)

    net, spec = Normed(), tiny_local(epochs=1, batch_size=11, momentum=0.0)
    by_hand = copy.deepcopy(net)
    weights = fit(Fit(Classifier(net, spec), client(23))).weights  # 11 + 11 + 1
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=spec.lr, fused=True)
    for batch in list(client(23).batches(11, 1))[:2]:
        optimizer.zero_grad()
        F.cross_entropy(by_hand(batch.x), batch.y).backward()
        optimizer.step()
    assert torch.equal(weights["inner.1.weight"], by_hand.inner[1].weight)
    assert torch.equal(weights["inner.2.running_mean"], by_hand.inner[2].running_mean)


def test_other_errors_are_not_swallowed():
    class Broken(Classifier):
        def loss(self, batch):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fit(Fit(module(tiny_local(), cls=Broken), client()))


def test_batches_cover_every_sample_once_per_epoch_and_nothing_is_dropped():
    seen = [(batch.epoch, batch.step, batch.index) for batch in client(23).batches(5, 2)]
    assert [len(index) for _, _, index in seen] == [5, 5, 5, 5, 3] * 2
    assert [step for _, step, _ in seen] == list(range(10))
    for epoch in (0, 1):
        assert sorted(torch.cat([i for e, _, i in seen if e == epoch]).tolist()) == list(range(23))
    assert not torch.equal(seen[0][2], seen[5][2]), "each epoch has an order of its own"


def test_batches_hold_the_labels_and_images_of_their_index():
    who = client(23)
    for batch in who.batches(5, 1):
        assert torch.equal(batch.y, who.data.y[batch.index])
        assert torch.equal(batch.x, who.data.transform.plain(who.data.images.take(batch.index)))


def test_more_views_do_not_change_the_first():
    who = client(9, augmentations=(RandomCrop(2),))
    for one, two in zip(who.batches(4, 2), who.batches(4, 2, views=2), strict=True):
        assert torch.equal(one.x, two.x)
        assert len(two.views) == 2
        assert not torch.equal(two.views[0], two.views[1])
        assert torch.equal(one.index, two.index)


def test_batches_do_not_depend_on_how_many_are_augmented_at_once(monkeypatch):
    plain = [batch.index.tolist() for batch in client(23).batches(5, 2)]
    monkeypatch.setattr("fnll.types.AUGMENT_AT_ONCE", 7)
    assert plain == [batch.index.tolist() for batch in client(23).batches(5, 2)]


def test_epochs_that_are_made_at_once_are_those_made_one_by_one(monkeypatch):
    at_once = list(client(23).batches(5, 3))
    monkeypatch.setattr("fnll.types.AUGMENT_AT_ONCE", 25)
    one_by_one = list(client(23).batches(5, 3))
    assert len(at_once) == len(one_by_one) == 15
    for a, b in zip(at_once, one_by_one, strict=True):
        assert (a.epoch, a.step) == (b.epoch, b.step)
        assert all(map(torch.equal, (a.x, a.y, a.index), (b.x, b.y, b.index)))
    assert at_once[0].x.untyped_storage().data_ptr() == at_once[-1].x.untyped_storage().data_ptr(), "one piece"
    assert one_by_one[0].x.untyped_storage().data_ptr() != one_by_one[-1].x.untyped_storage().data_ptr()


def test_scan_is_in_order_and_plain_unless_asked():
    who = client(9, augmentations=(RandomCrop(2),))
    plain = torch.cat([batch.x for batch in who.scan(4)])
    assert torch.equal(plain, who.data.transform.plain(who.data.images.take(torch.arange(9))))
    first, again = (torch.cat([b.x for b in who.scan(4, augment=True)]) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, plain)


def test_subset_and_with_labels():
    who = client(9)
    kept = who.subset(who.data.y != 0)
    assert len(kept) == int((who.data.y != 0).sum())
    assert all((batch.y != 0).all() for batch in kept.batches(3, 1))
    zero = who.with_labels(torch.zeros(9))
    assert zero.class_counts().tolist() == [9, 0, 0, 0]
    assert torch.equal(zero.data.observed, who.data.observed)
    with pytest.raises(ValueError, match="9 samples, got 3 labels"):
        who.with_labels(torch.zeros(3))


def test_adam_is_l2_not_adamw():
    spec = adam(
        betas=[0.9, 0.999], weight_decay=0.1, epochs=1, batch_size=50, lr=0.01, lr_decay=1.0, clip_norm=None,
        keep_optimizer=False, precision="32-true",
    )  # fmt: skip
    ours = module(spec)
    reference = module(spec)
    who = client()
    weights = fit(Fit(ours, who)).weights
    optimizer = torch.optim.Adam(reference.net.parameters(), lr=0.01, weight_decay=0.1)
    (batch,) = who.batches(50, 1)
    F.cross_entropy(reference.net(batch.x), batch.y).backward()
    optimizer.step()
    assert all(torch.allclose(weights[k], v, atol=1e-6) for k, v in snapshot(reference.net).items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "local.epochs must be a whole number of at least 1"),
        ({"batch_size": 2.5}, "local.batch_size must be a whole number"),
        ({"lr": 0}, "local.lr must be greater than 0"),
        ({"momentum": 1.5}, r"local.momentum must be in \[0, 1\]"),
        ({"weight_decay": -1}, "local.weight_decay must be at least 0"),
        ({"clip_norm": 0}, "local.clip_norm must be greater than 0"),
        ({"lr": float("inf")}, "local.lr must be finite"),
        ({"lr": True}, "local.lr must be greater than 0, got true"),
        ({"weight_decay": float("inf")}, "local.weight_decay must be finite"),
        ({"keep_optimizer": "perhaps"}, "local.keep_optimizer must be true or false"),
        ({"precision": "8-bit"}, "precision must be one of 32-true, bf16-mixed, 16-mixed"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        tiny_local(**change)


@pytest.mark.parametrize(
    ("betas", "message"),
    [
        (3, "local.betas must be 2 values, each at least 0 and less than 1, got 3"),
        ([0.9], r"local.betas must be 2 values, .*, got \[0.9\]; .* as in local.betas=\[0.9,0.999\]"),
        ([0.9, 1.0], r"local.betas must be .* less than 1, got \[0.9, 1.0\]"),
        ([-0.1, 0.9], r"local.betas must be .* at least 0 .*, got \[-0.1, 0.9\]"),
    ],
)
def test_adam_refuses_moments_that_torch_would_refuse_in_the_first_job(betas, message):
    with pytest.raises(UserError, match=message):
        adam(betas=betas, weight_decay=0.0)
