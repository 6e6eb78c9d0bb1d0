"""DivideMix: its targets and loss by hand, who divides for whom, and its three forms."""

import math
from dataclasses import replace
from functools import cache
from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from driving import done

from fnll.executors import Serial
from fnll.executors.jobs import met
from fnll.executors.vectorised import Vectorised
from fnll.federation import federate
from fnll.harness.config import compose
from fnll.local import Fit, Frozen
from fnll.methods.dividemix import Both, semi_loss, sharpen
from fnll.methods.dividemix_local import Division, MixMatch, ramped, warmup_loss
from fnll.methods.fedavg import FedAvg
from fnll.scenario import assemble
from fnll.testing import TinyWorld, accuracy, play, same, subject_of
from fnll.types import Batch
from fnll.weights import all_finite, part

subject = cache(subject_of)  # composing a config takes half a second


def method(world, cohort=3, **settings):
    return subject("dividemix").method(world, cohort=cohort, **settings)


def client_of(world, k=0, t=5, memory=None):
    return world.scenario.client(k, t=t, memory=memory or {}, labels=None, seed=7, device=torch.device("cpu"))


def requests(job):
    """Do what a job asks for, as an executor would; the trainings it asked for, and its result."""
    asked = []
    try:
        request = next(job)
        while True:
            if isinstance(request, Fit):
                asked.append(request)
            request = job.send(met(request))
    except StopIteration as end:
        return asked, end.value


def answering(posterior):
    """A `DivideMix.posterior` that asks for nothing on its way."""

    def job(self, weights, client):
        yield from ()
        return posterior(client)

    return job


# Targets and loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sharpening_by_hand(dtype):
    """Squares 0.25, 0.09, 0.04 over their sum 0.38."""
    p = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]], dtype=dtype)
    expected = torch.tensor([[0.25, 0.09, 0.04], [0.38, 0.0, 0.0]], dtype=dtype) / 0.38
    assert torch.allclose(sharpen(p, 0.5), expected, atol=1e-6)
    assert sharpen(p, 0.5)[0].tolist() == pytest.approx([0.657895, 0.236842, 0.105263], abs=1e-6)
    assert torch.allclose(sharpen(p, 1.0), p)
    assert sharpen(p, 0.5).dtype == dtype
    assert torch.allclose(sharpen(p[0], 0.5), sharpen(p, 0.5)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_by_hand(dtype):
    """Labelled logits (log 3, 0): probabilities (3/4, 1/4), target (1, 0): L_x = log 4/3 = 0.287682.

    Unlabelled logits (0, 0) with target (0.9, 0.1): L_u = (0.4² + 0.4²)/2 = 0.16. The mean prediction of the two is
    (5/8, 3/8): L_reg = (log(4/5) + log(4/3))/2 = 0.032269. With λ_u = 10 in total 1.919951.
    """
    x, u = torch.tensor([[math.log(3), 0.0]], dtype=dtype), torch.zeros(1, 2, dtype=dtype)
    tx, tu = torch.tensor([[1.0, 0.0]], dtype=dtype), torch.tensor([[0.9, 0.1]], dtype=dtype)
    for weight, expected in ((0.0, 0.319951), (10.0, 1.919951)):
        loss = semi_loss(x, tx, u, tu, weight)
        assert loss.dtype == dtype
        assert float(loss) == pytest.approx(expected, abs=2e-6)


def test_the_loss_without_unlabelled_samples():
    """L_x = 0.287682 and L_reg = (log(2/3) + log 2)/2 = 0.143841."""
    x, nothing = torch.tensor([[math.log(3), 0.0]]), torch.zeros(0, 2)
    loss = semi_loss(x, torch.tensor([[1.0, 0.0]]), nothing, nothing, 25.0)
    assert float(loss) == pytest.approx(0.287682 + 0.143841, abs=2e-6)


def test_the_gradient_is_that_of_the_published_form():
    g = torch.Generator().manual_seed(0)
    x, u = (torch.randn(n, 4, generator=g, dtype=torch.float64, requires_grad=True) for n in (6, 8))
    tx, tu = (torch.randn(n, 4, generator=g, dtype=torch.float64).softmax(1) for n in (6, 8))
    mean = torch.cat([x, u]).softmax(1).mean(0)
    plain = F.cross_entropy(x, tx) + 12.5 * F.mse_loss(u.softmax(1), tu) + (0.25 * (0.25 / mean).log()).sum()
    ours = semi_loss(x, tx, u, tu, 12.5)
    for left, right in zip(torch.autograd.grad(ours, (x, u)), torch.autograd.grad(plain, (x, u)), strict=True):
        assert torch.allclose(left, right, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x, u: semi_loss(x, tx, u, tu, 12.5), (x, u))


def test_a_class_that_is_never_predicted_leaves_the_loss_finite():
    x = torch.tensor([[200.0, 0.0]], requires_grad=True)
    loss = semi_loss(x, torch.tensor([[1.0, 0.0]]), x[:0], x[:0], 25.0)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


def test_the_ramp():
    assert [ramped(25.0, t - 100, 16) for t in (99, 100, 101, 108, 116, 200)] == [0, 0, 1.5625, 12.5, 25, 25]
    assert ramped(25.0, 0.5, 16) == 25 / 32  # in the middle of the first epoch
    assert ramped(25.0, 0, 0) == 25


def test_when_the_ramp_begins_and_what_it_counts():
    world = TinyWorld()  # two local epochs
    assert method(world, warmup=10).since(12, 1) == 2
    assert method(world, warmup=101, ramp_start=100).since(101, 0) == 1
    assert method(world, warmup=10, ramp_clock="epochs").since(12, 1) == 5


def test_the_warm_up_loss():
    """Probabilities (3/4, 1/4): cross-entropy 0.287682, entropy 0.562335."""
    batch = Batch((torch.tensor([[math.log(3), 0.0]]),), torch.tensor([0]), torch.tensor([0]), 0, 0)
    net = torch.nn.Identity()
    assert float(warmup_loss(net, batch, False)) == pytest.approx(0.287682, abs=2e-6)
    assert float(warmup_loss(net, batch, True)) == pytest.approx(0.287682 - 0.562335, abs=2e-6)


# One step


class Table(torch.nn.Module):
    """A linear network whose logits are the first numbers of an image, times a factor."""

    def __init__(self, factor, classes=4):
        super().__init__()
        self.factor, self.classes = torch.nn.Parameter(torch.tensor(factor)), classes

    def forward(self, x):
        return self.factor * x.flatten(1)[:, : self.classes]


def test_one_step_by_the_algorithm():
    """Targets from both networks and views, mixed with the drawn partners: against the formulas, sample by sample."""
    world = TinyWorld()
    client = client_of(world)
    whole = torch.arange(12)
    labelled = whole < 7
    clean = torch.linspace(0.6, 0.9, 7).double()
    module = MixMatch(
        Table(0.7), replace(method(world).local, epochs=1), 5, peer=Frozen(Table(-0.3)),
        division=Division(clean, client.data.index[~labelled]), alpha=4.0, temperature=0.5, lambda_u=25.0,
        ramp=16.0, since=4.0,
    )  # fmt: skip
    own = client.subset(labelled)
    batches = [module.draw(batch, own) for batch in own.batches(5, 1, views=2)]
    assert [len(batch.y) for batch in batches] == [5, 2]
    assert [len(batch.extras["guessed"][0]) for batch in batches] == [5, 5]  # five unlabelled ones, used twice
    assert float(batches[1].extras["lambda_u"]) == pytest.approx(25 * 4.5 / 16)
    for batch in batches:
        extras, share = batch.extras, float(batch.extras["share"])
        assert 0.5 <= share <= 1
        rows, targets = [], []
        for view in batch.views:
            for i in range(len(batch.y)):
                guess = sum((0.7 * v[i].flatten()[:4]).softmax(0) for v in batch.views) / 2
                w = float(clean[batch.index[i]])
                rows.append(view[i])
                targets.append((w * F.one_hot(batch.y[i], 4) + (1 - w) * guess) ** 2)
        for view in extras["guessed"]:
            for i in range(len(view)):
                guess = sum((f * v[i].flatten()[:4]).softmax(0) for f in (0.7, -0.3) for v in extras["guessed"]) / 4
                rows.append(view[i])
                targets.append(guess**2)
        targets = [t / t.sum() for t in targets]
        partner, labels = extras["partner"].tolist(), 2 * len(batch.y)
        assert sorted(partner) == list(range(len(rows)))
        logits = torch.stack(
            [0.7 * (share * rows[i] + (1 - share) * rows[j]).flatten()[:4] for i, j in enumerate(partner)]
        )
        mixed = torch.stack([share * targets[i] + (1 - share) * targets[j] for i, j in enumerate(partner)])
        expected = semi_loss(logits[:labels], mixed[:labels], logits[labels:], mixed[labels:], extras["lambda_u"])
        assert torch.allclose(module.loss(batch), expected, atol=1e-5)


def test_networks_that_normalise_by_the_batch_see_one_view_at_a_time():
    world = TinyWorld()
    seen = []

    class Watched(Table):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    class Normalising(Watched):
        def __init__(self, factor):
            super().__init__(factor)
            self.norm = torch.nn.BatchNorm1d(4)

    client = client_of(world)
    labelled = torch.arange(12) < 9
    for kind, passes in ((Watched, [14, 4, 14]), (Normalising, [5, 5, 2, 2, 2, 2, 14])):
        net = kind(0.7)
        module = MixMatch(
            net, method(world).local, 5, peer=Frozen(kind(0.1)), division=Division(torch.ones(9).double(),
            client.data.index[labelled.logical_not()][:2]), alpha=4.0, temperature=0.5, lambda_u=1.0, ramp=0.0,
            since=0.0,
        )  # fmt: skip
        own = client.subset(labelled)
        batch = module.draw(next(own.batches(5, 1, views=2)), own)
        seen.clear()
        module.loss(batch)
        assert seen == passes


def test_unlabelled_samples_come_in_turns():
    """Each of them once before one comes again, in another order."""
    world = TinyWorld()
    client = client_of(world)
    labelled = torch.arange(12) < 1
    rest = client.data.index[~labelled]
    module = MixMatch(
        Table(0.7), replace(method(world).local, batch_size=4), 5, peer=Frozen(Table(0.1)),
        division=Division(torch.ones(1).double(), rest), alpha=4.0, temperature=0.5, lambda_u=1.0, ramp=0.0, since=0.0,
    )  # fmt: skip
    own = client.subset(labelled)
    batch = next(own.batches(4, 1, views=2))
    known = {
        row.numpy().tobytes(): i for i, row in enumerate(client.data.transform.plain(client.data.images.take(rest)))
    }
    turns = [
        [known[row.numpy().tobytes()] for row in module.draw(replace(batch, step=s), own).extras["guessed"][0]]
        for s in range(6)
    ]  # the tiny world does not augment
    first, second = [*chain(*turns[:3])], [*chain(*turns[3:])]
    assert [len(turn) for turn in turns] == [4, 4, 3] * 2
    assert sorted(first) == sorted(second) == list(range(11))
    assert first != second


# The client's job


def test_each_network_trains_on_the_others_division(monkeypatch):
    world = TinyWorld()
    ours = method(world, warmup=0)
    clean = {"a": torch.tensor([0.9] * 4 + [0.1] * 8).double(), "b": torch.tensor([0.25] * 5 + [0.75] * 7).double()}
    names = iter("abab")
    monkeypatch.setattr("fnll.methods.dividemix.DivideMix.posterior", answering(lambda _: clean[next(names)]))
    client = client_of(world)
    weights = ours.init(_fed(world)).weights
    asked, update = requests(ours.train(client, weights))
    assert [len(request.client) for request in asked] == [7, 4, 7, 4]  # a by b's division, b by a's, twice
    assert asked[0].module.division.clean.tolist() == [0.75] * 7
    assert torch.equal(asked[0].module.division.rest, client.data.index[:5])
    assert all(request.views == 2 for request in asked)
    after = {name: dict(part(update.weights, name)) for name in "ab"}
    first, second, third, last = (request.module for request in asked)
    assert same(dict(first.peer.net.state_dict()), dict(part(weights, "b")))  # a learns first, from b as it came
    assert same(dict(second.peer.net.state_dict()), dict(first.net.state_dict()))  # b from the new a
    assert same(dict(third.peer.net.state_dict()), dict(second.net.state_dict()))
    assert same(dict(last.net.state_dict()), after["b"])
    assert same(dict(third.net.state_dict()), after["a"])
    assert update.trace["clean"].tolist() == [True] * 4 + [False] + [False] * 7  # means 0.575, 0.175 and 0.425


def _fed(world):
    class Fed:
        def seed(self, *path):
            return len(path)

    return Fed()


@pytest.mark.parametrize(("divide", "times"), [("epoch", 4), ("round", 2)])
def test_how_often_samples_are_divided(divide, times, monkeypatch):
    world = TinyWorld()
    ours = method(world, warmup=0, divide=divide)
    asked = []
    posterior = answering(lambda client: asked.append(1) or torch.ones(len(client)).double())
    monkeypatch.setattr("fnll.methods.dividemix.DivideMix.posterior", posterior)
    requests(ours.train(client_of(world), ours.init(_fed(world)).weights))
    assert len(asked) == times


def test_the_division_is_by_small_losses():
    world = TinyWorld("noisy")
    ours = method(world)
    snapshot = play(FedAvg(**world.shared(6)), TinyWorld("clean"), rounds=8, cohort=6)[-1]
    client = client_of(world)
    clean = done(ours.posterior(dict(snapshot.state.weights), client))
    wrong = client.data.y != world.truth.labels[world.scenario.shards[0]]
    assert wrong.sum() == 6
    assert clean[~wrong].min() > 0.5
    assert clean[wrong].max() < 0.5


def test_never_an_empty_labelled_set():
    world = TinyWorld()
    chosen = method(world).labelled(torch.tensor([0.1, 0.3, 0.2, 0.4, 0.0, 0.25, 0.05]).double())
    assert chosen.tolist() == [True, True, True, True, False, True, False]  # the five (a batch) most probable
    assert method(world).labelled(torch.tensor([0.5, 0.6]).double()).tolist() == [False, True]  # above, not at


def test_the_warm_up_is_two_fedavgs():
    """The first network's is FedAvg bit for bit; the second begins elsewhere and has batches of its own."""
    world = TinyWorld()
    ours = play(method(world, warmup=10**9), world)
    plain = play(FedAvg(**world.shared()), world)
    for two, one in zip(ours, plain, strict=True):
        assert same(dict(part(two.state.weights, "a")), dict(one.state.weights))
        assert not same(dict(part(two.state.weights, "b")), dict(one.state.weights))
    assert ours[-1].totals.up_bytes == 2 * plain[-1].totals.up_bytes


def test_warm_up_epochs_and_penalty():
    world = TinyWorld()
    ours = method(world, warmup=6, warmup_epochs=1, confidence_penalty=True)
    weights = ours.init(_fed(world)).weights
    asked, update = requests(ours.train(client_of(world, t=5), weights))
    assert [request.module.spec.epochs for request in asked] == [1, 1]
    assert asked[0].module.facts == {"penalty": True}
    assert update.trace["clean"].all()


def test_the_rate_drops_once():
    world = TinyWorld()
    ours = method(world, warmup=0, lr_drop=5)
    weights = ours.init(_fed(world)).weights
    rates = [requests(ours.train(client_of(world, t=t), weights))[0][0].module.spec.lr for t in (4, 5)]
    assert rates == [0.1, pytest.approx(0.01)]


def test_the_batches_of_epochs_and_networks_differ():
    world = TinyWorld()
    ours = method(world, warmup=0, p_threshold=0.0, gmm_reg_covar=1.0)
    asked, _ = requests(ours.train(client_of(world), ours.init(_fed(world)).weights))
    shares = {
        float(r.module.draw(next(r.client.batches(5, 1, *r.path, views=2)), r.client).extras["share"]) for r in asked
    }
    assert len(shares) == len(asked) == 4


# The server


def test_what_is_judged():
    world = TinyWorld()
    state = play(method(world), world, rounds=2)[-1].state
    images = torch.randn(3, *world.scenario.input_shape, generator=torch.Generator().manual_seed(0))
    both, first = (method(world, judged=judged).model(state).eval() for judged in ("both", "first"))
    a, b = (method(world).net.load(part(state.weights, name)).eval() for name in "ab")
    assert isinstance(both, Both)
    assert torch.equal(first(images), a(images))
    assert torch.allclose(both(images), (a(images) + b(images)) / 2)


def test_stages():
    world = TinyWorld()
    rows = list(federate(method(world, warmup=3), Serial(world.scenario), world.public, budget=15, seed=0))
    assert [ledger.records["stage"] for _, ledger in rows] == ["warm-up"] * 3 + ["semi-supervised"] * 2


def test_inside_another_method():
    world = TinyWorld()
    start = method(world).net.fresh(3)
    state = method(world).init(_fed(world), start)
    assert same(dict(part(state.weights, "a")), start)
    assert same(dict(part(state.weights, "b")), start)


# The forms, and other executors


def test_centralised():
    """One client with everyone's data, one epoch a round, and an optimiser for each network that is kept."""
    world = TinyWorld()
    pooled, _ = assemble(
        world.dataset, world.scenario.shards, world.scenario.labels, torch.full((6,), torch.nan).double(), pooled=True
    )
    object.__setattr__(world, "scenario", pooled)
    ours = method(world, cohort=1, lr_drop=8)
    ours = replace(ours, local=replace(ours.local, epochs=1, keep_optimizer=True))
    snapshots = play(ours, world, rounds=10, cohort=1)
    assert set(snapshots[-1].clients[0].memory) == {"optimizer", "optimizer/b"}
    assert accuracy(ours, snapshots[-1], world) > 0.5


def test_a_kept_optimiser_goes_on_within_a_round():
    world = TinyWorld()
    ours = method(world, warmup=0)
    ours = replace(ours, local=replace(ours.local, keep_optimizer=True))
    asked, update = requests(ours.train(client_of(world), ours.init(_fed(world)).weights))
    assert "optimizer" not in asked[0].client.memory
    assert {"optimizer", "optimizer/b"} <= set(asked[2].client.memory)
    assert set(update.memory) == {"optimizer", "optimizer/b"}


@pytest.mark.parametrize("kind", ["noisy", "one_sample"])
def test_close_to_serial_on_the_vectorised_executor(kind):
    world = TinyWorld(kind)
    ours = method(world, cohort=6)
    plain = play(ours, world, rounds=3, cohort=6)
    executor = Vectorised(world.scenario)
    fast = play(ours, world, rounds=3, cohort=6, executor=executor)
    assert not executor.said  # nothing was trained alone for want of being able to go together
    assert [s.totals for s in plain] == [s.totals for s in fast]
    for name, value in plain[-1].state.weights.items():
        assert torch.allclose(value, fast[-1].state.weights[name], atol=2e-3)


@pytest.mark.parametrize("kind", ["all_noisy", "one_sample"])
@pytest.mark.parametrize("settings", [{"p_threshold": 1.0}, {"p_threshold": 0.0, "eval_augment": True}])
def test_awkward_clients_stay_finite(kind, settings):
    """Nothing labelled, everything labelled."""
    world = TinyWorld(kind)
    assert all_finite(play(method(world, warmup=1, **settings), world, rounds=3)[-1].state.weights)


# Presets


def preset(dataset, name):
    return compose(["method=dividemix", f"dataset={dataset}", f"preset={name}"]).cfg


@pytest.mark.parametrize(("dataset", "clients", "lambda_u"), [("cifar10", 100, 25), ("cifar100", 50, 150)])
def test_fedcorrs_form(dataset, clients, lambda_u):
    cfg = preset(dataset, "paper")
    ours = cfg.method
    assert (cfg.protocol, cfg.num_clients, cfg.rounds, ours.warmup, ours.warmup_epochs) == (
        "paper",
        clients,
        100,
        20,
        5,
    )
    assert (ours.lambda_u, ours.temperature, ours.alpha, ours.gmm_max_iter) == (lambda_u, 0.5, 4.0, 10)
    assert (cfg.local.epochs, cfg.local.lr, cfg.local.batch_size, cfg.local.momentum) == (20, 0.02, 10, 0.5)


def test_fedcorrs_form_on_clothing1m():
    cfg = preset("clothing1m", "paper")
    assert (cfg.rounds, cfg.method.warmup, cfg.local.epochs, cfg.local.lr) == (40, 0, 10, 0.01)
    assert (cfg.method.lambda_u, cfg.method.alpha) == (25.0, 0.5)


@pytest.mark.parametrize(
    ("dataset", "name", "rounds"),
    [
        ("cifar10", "fedrn_tables/dividemix_cifar10", 500),
        ("cifar100", "fedrn_tables/dividemix_cifar100", 1000),
        ("webvision_mini", "paper", 1000),
    ],
)
def test_fedrns_form(dataset, name, rounds):
    cfg = preset(dataset, name)
    ours = cfg.method
    assert (cfg.protocol, cfg.rounds, cfg.local.epochs, cfg.local.batch_size) == ("paper", rounds, 5, 50)
    assert (ours.warmup, ours.ramp_start, ours.ramp, ours.lambda_u) == (101, 100, 16, 25)
    assert (ours.judged, ours.eval_augment, ours.gmm_max_iter) == ("first", True, 100)


@pytest.mark.parametrize(("dataset", "warmup", "lambda_u"), [("cifar10", 10, 25), ("cifar100", 30, 150)])
def test_the_centralised_recipe(dataset, warmup, lambda_u):
    cfg = preset(dataset, f"fedcorr_tables/dividemix_centralised_{dataset}")
    assert (cfg.scenario.pooled, cfg.rounds, cfg.local.epochs, cfg.local.keep_optimizer) == (True, 300, 1, True)
    assert (cfg.method.warmup, cfg.method.lambda_u, cfg.method.lr_drop) == (warmup, lambda_u, 150)
    assert (cfg.local.batch_size, cfg.local.lr, cfg.local.momentum) == (64, 0.02, 0.9)
