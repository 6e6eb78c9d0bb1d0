"""FedCorr+LA: every stage trains on adjusted logits, by the labels of the day; nothing else differs from FedCorr."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from fnll.executors.vectorised import Vectorised
from fnll.federation import federate
from fnll.harness.config import compose
from fnll.methods import fedcorr_local
from fnll.methods.fedcorr_labels import lid_score
from fnll.methods.fedcorr_local import Mixup, Preprocessing
from fnll.testing import Recording, TinyWorld, play, same, subject_of, tiny_local
from fnll.tools import Mixed, predict
from fnll.types import CPU, Batch

subject = cache(subject_of)  # composing a config takes longer than a tiny run
COUNTS = torch.tensor([60, 30, 10])


class Fixed(nn.Module):
    """A network that answers with its only parameter, whatever it sees."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


def batch(label: int, **extras: object) -> Batch:
    return Batch((torch.zeros(1, 1),), torch.tensor([label]), torch.arange(1), 0, 0, extras)


def client(world: TinyWorld, k: int = 0, labels: Tensor | None = None):
    return world.scenario.client(k, t=0, memory={}, labels=labels, seed=0, device=CPU)


@pytest.mark.parametrize(("label", "loss"), [(0, 0.900255), (1, 0.593402), (2, 3.192014)])
def test_without_mixup_it_is_cross_entropy_of_adjusted_logits(label: int, loss: float) -> None:
    # f = (1, 2, 0.5), π = (0.6, 0.3, 0.1): σ(f + log π) = (0.406466, 0.552445, 0.041089)
    module = Mixup(Fixed(1, 2, 0.5), tiny_local(), 0, alpha=0.0, counts=COUNTS)
    assert module.loss(batch(label)).item() == pytest.approx(loss, abs=1e-6)


def test_mixup_mixes_the_adjusted_losses_of_both_labels() -> None:
    mixed = Mixed(torch.tensor([0]), torch.tensor([1]), torch.tensor(0.3), torch.tensor(0.7))
    net = Fixed(1, 2, 0.5)
    anchor = {"logits": net.logits.detach() - 1}  # ‖w − w_g‖² = 3
    mixup = Mixup(net, tiny_local(), 0, alpha=1.0, counts=COUNTS)
    stage1 = Preprocessing(net, tiny_local(), 0, alpha=1.0, anchor=anchor, weight=0.5, prox="squared", counts=COUNTS)
    expected = 0.3 * 0.900255 + 0.7 * 0.593402
    assert mixup.loss(batch(0, mixed=mixed)).item() == pytest.approx(expected, abs=1e-6)
    assert stage1.loss(batch(0, mixed=mixed, near=True)).item() == pytest.approx(expected + 1.5, abs=1e-6)


def test_the_prior_is_that_of_the_labels_a_client_has_now_and_floored() -> None:
    world = TinyWorld("noisy")
    method = subject("fedcorr_la").method(world)
    observed = torch.bincount(world.scenario.labels[world.scenario.shards[0]], minlength=4)
    assert method.prior(client(world)).tolist() == observed.clamp_min(1).tolist()
    corrected = torch.tensor([0] * 5 + [3] * 7)
    assert method.prior(client(world, labels=corrected)).tolist() == [5, 1, 1, 7]
    unfloored = subject("fedcorr_la").method(world, prior_floor=0)
    assert unfloored.prior(client(world, labels=corrected)).tolist() == [5, 0, 0, 7]


def test_a_floored_prior_makes_every_label_possible() -> None:
    for floor, possible in ((0, False), (1, True)):
        counts = torch.tensor([75, 25, 0]).clamp_min(floor)
        module = Mixup(Fixed(1, 2, 0.5), tiny_local(), 0, alpha=0.0, counts=counts)
        assert bool(module.loss(batch(2)).isfinite()) == possible


@pytest.mark.parametrize("stages", [[1], [], [1, 2, 3]], ids=str)
def test_every_batch_of_every_stage_is_adjusted(stages: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    world = TinyWorld("noisy")
    seen: list[list[int]] = []

    def spy(logits: Tensor, counts: Tensor) -> Tensor:
        seen.append(counts.tolist())
        return logits

    monkeypatch.setattr(fedcorr_local, "logit_adjusted", spy)
    method = subject("fedcorr_la").method(world, mixup_stages=stages)
    executor = Recording(world.scenario)
    passed = set()
    for _, ledger in federate(method, executor, world.public, budget=24, seed=0):
        trained = [call for part in executor.seen for call, update in part if update.weights is not None]
        batches = [-(-len(client(world, call.client)) // 5) * 2 for call in trained]  # two epochs, batches of five
        expected = [
            torch.bincount(
                world.scenario.labels[world.scenario.shards[call.client]] if call.labels is None else call.labels,
                minlength=4,
            )
            .clamp_min(1)
            .tolist()
            for call, count in zip(trained, batches, strict=True)
            for _ in range(count)
        ]
        assert seen == expected
        passed.add(ledger.records["stage"])
        seen.clear()
        executor.seen.clear()
    assert passed == {"preprocessing", "finetuning", "usual"}


def test_relabelled_clients_train_by_a_new_prior() -> None:
    """The run above compares priors with each call's labels; here some call really brings corrected ones."""
    world = TinyWorld("noisy")
    method = subject("fedcorr_la").method(world, confidence=0.0)
    executor = Recording(world.scenario)
    list(federate(method, executor, world.public, budget=36, seed=0))
    changed = [
        call
        for part in executor.seen
        for call, update in part
        if update.weights is not None
        and call.labels is not None
        and method.prior(client(world, call.client, call.labels)).tolist()
        != method.prior(client(world, call.client)).tolist()
    ]
    assert changed


def test_scores_come_from_plain_outputs() -> None:
    world = TinyWorld("noisy")
    method = subject("fedcorr_la").method(world)
    executor = Recording(world.scenario)
    next(federate(method, executor, world.public, budget=24, seed=0))
    ((call, update),) = executor.seen[0]
    logits = predict(method.net.load(update.weights), client(world, call.client))
    assert update.report["lid"] == pytest.approx(lid_score(logits, 20, 100.0, "shrink_k"))


def test_where_every_class_is_equally_often_it_is_fedcorr() -> None:
    world = TinyWorld("balanced")
    ours, reference = (
        play(subject(name).method(world, correction=False), world)[-1] for name in ("fedcorr_la", "fedcorr")
    )
    assert same(dict(ours.state.weights), dict(reference.state.weights))
    assert ours.totals == reference.totals


def test_elsewhere_it_is_not() -> None:
    world = TinyWorld("noisy")
    ours, reference = (play(subject(name).method(world), world) for name in ("fedcorr_la", "fedcorr"))
    assert not same(dict(ours[0].state.weights), dict(reference[0].state.weights)), "from stage 1 on"


@pytest.mark.parametrize("kind", ["noisy", "one_sample", "single_class", "empty"])
def test_vectorised_close_to_serial(kind: str) -> None:
    world = TinyWorld(kind)
    method = subject("fedcorr_la").method(world, cohort=6, correction=False)
    executor = Vectorised(world.scenario)
    plain = play(method, world, rounds=4, cohort=6)[-1]
    fast = play(method, world, rounds=4, cohort=6, executor=executor)[-1]
    assert plain.totals == fast.totals
    weights = fast.state.weights
    assert max(float((plain.state.weights[name] - weights[name]).abs().max()) for name in weights) < 2e-3
    assert not executor.said, "nothing had to be done one client at a time"


@pytest.mark.parametrize(("dataset", "rounds", "passes", "finetune"), [("ich", 102, 2, 50), ("isic2019", 305, 5, 150)])
def test_presets_are_those_of_fedcorr_in_fednoros_tables(dataset: str, rounds: int, passes: int, finetune: int) -> None:
    cfg, plain = (compose([f"method={m}", f"dataset={dataset}", "preset=paper"]).cfg for m in ("fedcorr_la", "fedcorr"))
    assert (cfg.protocol, cfg.rounds, cfg.method.passes, cfg.method.finetune) == ("paper", rounds, passes, finetune)
    own = {key: value for key, value in cfg.method.items() if key not in ("_target_", "prior_floor")}
    assert own == {key: value for key, value in plain.method.items() if key != "_target_"}
    assert cfg.local == plain.local
