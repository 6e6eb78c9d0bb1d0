"""JointOpt: its loss by hand, which predictions become labels and when, and its three forms."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from fnll.errors import UserError
from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.federation import federate
from fnll.harness.config import compose
from fnll.methods.jointopt import Relabelling, averaged, joint_loss, soft_cross_entropy
from fnll.scenario import assemble
from fnll.testing import TinyWorld, accuracy, play, same, subject_of
from fnll.training import fit
from fnll.types import Batch
from fnll.weights import all_finite

subject = cache(subject_of)  # composing a config takes half a second


def method(world, cohort=3, **settings):
    return subject("jointopt").method(world, cohort=cohort, **{"retrain": 0, "warmup": 2, **settings})


def client_of(world, k=0, t=5, memory=None):
    return world.scenario.client(k, t=t, memory=memory or {}, labels=None, seed=7, device=torch.device("cpu"))


def trained(job):
    """Do what a job asks for, as an executor would; its result and the modules it trained."""
    modules = []
    try:
        request = next(job)
        while True:
            modules.append(request.module)
            request = job.send(fit(request))
    except StopIteration as end:
        return end.value, modules


# The loss

LOGITS = [[1.0, 0.0], [0.0, 2.0]]
TARGETS = [[1.0, 0.0], [0.3, 0.7]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_by_hand(dtype):
    """Predictions (0.731059, 0.268941) and (0.119203, 0.880797).

    L_c: (−log 0.731059 − 0.3 log 0.119203 − 0.7 log 0.880797)/2 = 0.520095; the mean prediction is
    (0.425131, 0.574869), so L_p = −(log 0.425131 + log 0.574869)/2 = 0.704486; L_e is the mean of the entropies
    0.582203 and 0.365334, 0.473768; in total 0.520095 + 1.2 · 0.704486 + 0.8 · 0.473768 = 1.744492.
    """
    logits, targets = torch.tensor(LOGITS, dtype=dtype), torch.tensor(TARGETS, dtype=dtype)
    for (alpha, beta), expected in {
        (0.0, 0.0): 0.520095,
        (1.0, 0.0): 0.520095 + 0.704486,
        (0.0, 1.0): 0.520095 + 0.473768,
        (1.2, 0.8): 1.744492,
    }.items():
        loss = joint_loss(logits, targets, alpha, beta)
        assert loss.dtype == dtype
        assert float(loss) == pytest.approx(expected, abs=2e-6)


def test_a_prior_of_ones_own():
    """−(0.25 log 0.425131 + 0.75 log 0.574869) = 0.629060."""
    logits, targets = torch.tensor(LOGITS), torch.tensor(TARGETS)
    extra = joint_loss(logits, targets, 1.0, 0.0, torch.tensor([0.25, 0.75])) - joint_loss(logits, targets, 0.0, 0.0)
    by_hand = -(0.25 * math.log(0.425131) + 0.75 * math.log(0.574869))
    assert float(extra) == pytest.approx(by_hand, abs=2e-6)


def test_the_gradient_is_that_of_the_published_form():
    """KL(p‖s̄) with its constant and plain logarithms has the same gradient."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=g, dtype=torch.float64, requires_grad=True)
    targets = torch.randn(6, 4, generator=g, dtype=torch.float64).softmax(1)
    probs = logits.softmax(1)
    p = torch.full((4,), 0.25, dtype=torch.float64)
    plain = -(targets * probs.log()).sum(1).mean()
    plain = plain + 1.2 * (p * (p / probs.mean(0)).log()).sum() - 0.8 * (probs * probs.log()).sum(1).mean()
    (expected,) = torch.autograd.grad(plain, logits)
    (ours,) = torch.autograd.grad(joint_loss(logits, targets, 1.2, 0.8), logits)
    assert torch.allclose(ours, expected, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: joint_loss(x, targets, 1.2, 0.8), logits)


def test_a_class_that_is_never_predicted_leaves_the_loss_finite():
    logits = torch.tensor([[200.0, 0.0], [200.0, 0.0]], requires_grad=True)  # softmax is exactly (1, 0) in float32
    loss = joint_loss(logits, torch.tensor([[1.0, 0.0]] * 2), 1.2, 0.8)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(1.2 * 100, rel=1e-3)  # −log(e^−200)/2 times α
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum() > 0  # and it still pulls


# Labels


def test_which_predictions_become_labels():
    history = torch.zeros(3, 1, 2)
    history[0, 0], history[1, 0] = torch.tensor([0.9, 0.1]), torch.tensor([0.5, 0.5])
    assert torch.allclose(averaged(history, 2, "skip"), torch.tensor([[0.7, 0.3]]))
    assert torch.allclose(averaged(history, 2, "zero"), torch.tensor([[1.4 / 3, 0.2]]))  # sums to 2/3
    history[2, 0] = torch.tensor([0.1, 0.9])
    for unfilled in ("skip", "zero"):
        assert torch.allclose(averaged(history, 5, unfilled), torch.tensor([[0.5, 0.5]]))


def watched(world, t=5, epochs=3, **settings):
    """The module of one client's round, and its predictions epoch by epoch."""
    ours = method(world, warmup=0, **settings)
    ours = replace(ours, local=replace(ours.local, epochs=epochs))
    seen = []

    class Spy(Relabelling):
        def on_train_epoch_end(self):
            seen.append(self.seen.clone())
            super().on_train_epoch_end()

    client = client_of(world, t=t)
    weights = ours.net.fresh(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fnll.methods.jointopt.Relabelling", Spy)
        update, (module,) = trained(ours.train(client, weights))
    return update, module, seen, client


def test_labels_are_the_mean_of_the_last_epochs_predictions():
    update, module, seen, client = watched(TinyWorld(), window=2)
    assert len(seen) == 3
    assert torch.allclose(module.targets, (seen[1] + seen[2]) / 2)
    assert torch.equal(update.memory["targets"], module.targets)
    assert torch.equal(update.labels, module.targets.argmax(1))
    assert torch.equal(update.memory["given"], client.data.observed)
    assert int(update.memory["filled"]) == 3
    assert torch.equal(update.memory["history"][0], seen[2])  # the oldest was overwritten
    assert torch.equal(update.memory["history"][1], seen[1])


def test_predictions_are_recorded_batch_by_batch():
    """In a batch's own step, before it: the record is of the network that the batch found."""
    world = TinyWorld()
    ours = method(world, warmup=0)
    client = client_of(world)
    module = Relabelling(
        ours.net.load(ours.net.fresh(1)), ours.local, 5, method=ours, targets=torch.full((12, 4), 0.25),
        history=torch.zeros(15, 12, 4), filled=0, prior=None,
    )  # fmt: skip
    batch = next(client.batches(5, 1))
    with torch.no_grad():
        expected = module.net(batch.x).softmax(1)
        loss = module.loss(batch)
        by_hand = joint_loss(module.net(batch.x), torch.full((5, 4), 0.25), 1.2, 0.8)
    assert torch.allclose(module.seen[batch.index], expected)
    assert float(loss) == pytest.approx(float(by_hand))


def test_update_from_leaves_the_first_epochs_alone():
    update, module, seen, _ = watched(TinyWorld(), update_from=3, window=2)
    assert module.updates == 1
    assert torch.allclose(module.targets, (seen[1] + seen[2]) / 2)
    update, module, *_ = watched(TinyWorld(), update_from=4)
    assert module.updates == 0
    assert update.labels is None
    assert "targets" not in update.memory


def test_hard_labels_are_one_hot():
    update, module, seen, _ = watched(TinyWorld(), labelling="hard")
    best = torch.stack(seen).mean(0).argmax(1)
    assert torch.equal(module.targets, F.one_hot(best, 4).float())
    assert torch.equal(update.labels, best)


def test_labels_stay_in_the_warm_up_but_predictions_are_kept():
    world = TinyWorld()
    snapshots = play(method(world, warmup=3), world, rounds=4, cohort=6)[:]
    assert all(kept.labels is None for kept in snapshots[2].clients.values())
    assert {int(kept.memory["filled"]) for kept in snapshots[2].clients.values()} <= {2, 4, 6}
    assert any(kept.labels is not None for kept in snapshots[3].clients.values())


def test_a_warm_up_with_cross_entropy_records_nothing():
    world = TinyWorld()
    snapshots = play(method(world, warmup=3, warmup_loss="cross_entropy"), world, rounds=4, cohort=3)
    assert all(not kept.memory for kept in snapshots[2].clients.values())
    assert {int(kept.memory["filled"]) for kept in snapshots[3].clients.values()} == {2}


def test_warm_up_epochs():
    world = TinyWorld()
    ours = method(world, warmup=6, warmup_epochs=1)
    (request, late) = (next(ours.train(client_of(world, t=t), ours.net.fresh(1))) for t in (5, 6))
    assert (request.module.spec.epochs, late.module.spec.epochs) == (1, 2)


def test_labels_are_kept_or_begin_anew():
    world = TinyWorld()
    weights = method(world).net.fresh(1)
    memory = {
        "targets": torch.full((12, 4), 0.25), "history": torch.full((15, 12, 4), 0.25), "filled": torch.tensor(20),
        "given": torch.full((12,), 3),
    }  # fmt: skip
    before = {name: value.clone() for name, value in memory.items()}
    keeps, forgets = (
        next(method(world, keep_labels=keep).train(client_of(world, memory=memory), weights)).module
        for keep in (True, False)
    )
    assert torch.equal(keeps.targets, memory["targets"])
    assert keeps.filled == 20
    assert torch.equal(forgets.targets, F.one_hot(memory["given"], 4).float())  # the labels it was given at first
    assert (forgets.filled, float(forgets.history.sum())) == (0, 0.0)
    trained(method(world).train(client_of(world, memory=memory), weights))
    assert all(torch.equal(memory[name], value) for name, value in before.items())


def test_the_clients_own_prior():
    world = TinyWorld("single_class")
    module = next(method(world, prior="client").train(client_of(world, 1), method(world).net.fresh(1))).module
    assert module.prior.tolist() == [1.0, 0.0, 0.0, 0.0]
    module = next(method(world).train(client_of(world, 1), method(world).net.fresh(1))).module
    assert module.prior is None


# Step 2


def test_the_soft_cross_entropy_of_step_two():
    net = torch.nn.Identity()
    batch = Batch((torch.tensor(LOGITS),), torch.tensor([0, 0]), torch.tensor([2, 0]), 0, 0)
    targets = torch.tensor([TARGETS[1], [0.5, 0.5], TARGETS[0]])
    assert float(soft_cross_entropy(net, batch, targets)) == pytest.approx(0.520095, abs=2e-6)


def test_step_two_trains_a_new_network_on_the_final_labels():
    world = TinyWorld()
    ours = method(world, retrain=3)
    rows = list(federate(ours, Serial(world.scenario), world.public, budget=24, seed=0))
    stages = [ledger.records["stage"] for _, ledger in rows]
    assert stages == ["warm-up"] * 2 + ["labels"] * 3 + ["retraining"] * 3
    assert [snapshot.state.retraining for snapshot, _ in rows] == [None] * 5 + [5] * 3
    before, after = rows[4][0].clients, rows[-1][0].clients
    for k, kept in before.items():  # no label changes any more
        assert same(kept.labels, after[k].labels)
        assert same(dict(kept.memory), dict(after[k].memory))
    client = client_of(world, memory={"targets": torch.full((12, 4), 0.25)})
    request = next(ours.train(client, ours.net.fresh(1), lr=0.3))
    assert float(request.module.facts["targets"].sum()) == pytest.approx(12)
    assert request.module.spec.lr == 0.3
    fresh = next(ours.train(client_of(world), ours.net.fresh(1), lr=0.3))  # a client never visited: its labels
    assert torch.equal(fresh.module.facts["targets"].argmax(1), client.data.y)


def test_the_rate_of_step_two_falls_twice():
    world = TinyWorld()
    rates = [method(world, retrain=7, retrain_lr=0.2).rate(t) for t in range(7)]
    assert rates == pytest.approx([0.2] * 2 + [0.02] * 2 + [0.002] * 3)  # after int(7/3) = 2 and int(14/3) = 4 rounds
    assert method(world, retrain=3).rate(0) == 0.1  # the local one


def test_step_two_must_leave_rounds_to_step_one():
    world = TinyWorld()
    with pytest.raises(UserError, match="leaves nothing of the 8 rounds to step 1"):
        play(method(world, retrain=8), world)


# The forms, and other executors


def test_centralised():
    """One client with everyone's data, one epoch a round, and one optimiser that is kept in each step."""
    world = TinyWorld()
    pooled, _ = assemble(
        world.dataset, world.scenario.shards, world.scenario.labels, torch.full((6,), torch.nan).double(), pooled=True
    )
    object.__setattr__(world, "scenario", pooled)
    ours = method(world, cohort=1, warmup=3, retrain=5)
    ours = replace(ours, local=replace(ours.local, epochs=1, keep_optimizer=True))
    snapshots = play(ours, world, rounds=12, cohort=1)
    memory = snapshots[-1].clients[0].memory
    assert {"optimizer", "optimizer/retrain", "targets", "history"} <= set(memory)
    assert memory["targets"].shape == (72, 4)
    assert accuracy(ours, snapshots[-1], world) > 0.5


@pytest.mark.parametrize("kind", ["noisy", "one_sample"])
def test_the_vectorised_executor(kind, caplog):
    """Warm-up with cross-entropy and step 2 are vectorised; step 1 writes predictions down, one client at a time."""
    caplog.set_level("INFO")
    world = TinyWorld(kind)
    ours = method(world, cohort=6, warmup_loss="cross_entropy", retrain=2)
    plain = play(ours, world, rounds=5, cohort=6)
    fast = play(ours, world, rounds=5, cohort=6, executor=Vectorised(world.scenario))
    assert [s.totals for s in plain] == [s.totals for s in fast]
    for name, value in plain[-1].state.weights.items():
        assert torch.allclose(value, fast[-1].state.weights[name], atol=2e-3)
    assert "Relabelling has a on_train_epoch_end of its own" in caplog.text


@pytest.mark.parametrize("kind", ["one_sample", "single_class"])
@pytest.mark.parametrize("settings", [{"unfilled": "zero"}, {"prior": "client"}, {"keep_labels": False}])
def test_awkward_clients_stay_finite(kind, settings):
    world = TinyWorld(kind)
    assert all_finite(play(method(world, **settings), world, rounds=4)[-1].state.weights)


# Presets


def preset(dataset, name):
    return compose(["method=jointopt", f"dataset={dataset}", f"preset={name}"]).cfg


@pytest.mark.parametrize(("dataset", "clients"), [("cifar10", 100), ("cifar100", 50)])
def test_fedcorrs_form(dataset, clients):
    cfg = preset(dataset, "paper")
    ours = cfg.method
    assert (cfg.protocol, cfg.num_clients, cfg.rounds, ours.warmup, ours.warmup_epochs) == (
        "paper",
        clients,
        100,
        20,
        5,
    )
    assert (ours.alpha, ours.beta, ours.warmup_loss) == (1.2, 0.8, "cross_entropy")
    assert (cfg.local.epochs, cfg.local.lr, cfg.local.batch_size, cfg.local.momentum) == (20, 0.01, 10, 0.5)


def test_fedcorrs_form_on_clothing1m():
    cfg = preset("clothing1m", "paper")
    assert (cfg.rounds, cfg.method.warmup, cfg.local.epochs, cfg.local.lr) == (40, 0, 10, 0.001)


@pytest.mark.parametrize(
    ("dataset", "name", "rounds"),
    [
        ("cifar10", "fedrn_tables/jointopt_cifar10", 500),
        ("cifar100", "fedrn_tables/jointopt_cifar100", 1000),
        ("webvision_mini", "paper", 1000),
    ],
)
def test_fedrns_form(dataset, name, rounds):
    cfg = preset(dataset, name)
    ours = cfg.method
    assert (cfg.protocol, cfg.rounds, cfg.local.epochs, cfg.local.batch_size) == ("paper", rounds, 5, 50)
    assert (ours.alpha, ours.beta, ours.warmup, ours.window, ours.unfilled) == (1.2, 0.8, 100, 15, "zero")
    assert ours.warmup_loss == "joint"


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_the_centralised_recipe(dataset):
    cfg = preset(dataset, f"fedcorr_tables/jointopt_centralised_{dataset}")
    assert (cfg.scenario.pooled, cfg.rounds, cfg.local.epochs, cfg.local.keep_optimizer) == (True, 320, 1, True)
    assert (cfg.method.beta, cfg.local.lr, cfg.method.retrain, cfg.method.retrain_lr) == (0.8, 0.2, 120, 0.2)
    assert (cfg.local.batch_size, cfg.local.momentum, cfg.local.weight_decay) == (128, 0.9, 0.0001)
