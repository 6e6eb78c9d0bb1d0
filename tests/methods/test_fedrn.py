"""FedRN: its decisions by hand, each switch on its own, and what a round sends and keeps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from driving import done
from omegaconf import OmegaConf
from torch import Tensor, nn

from fnll.errors import UserError
from fnll.executors import Serial, perform
from fnll.federation import Federation, Ledger, federate
from fnll.harness.checkpoint import Checkpoints
from fnll.harness.choices import config_dir
from fnll.harness.config import compose
from fnll.harness.diagnostics import precision_recall
from fnll.images import HorizontalFlip, InMemory, Transform
from fnll.local import Asking
from fnll.methods import fedrn
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedrn import FedRN, HeadTuning, NeighbourState
from fnll.methods.fedrn_reliability import cosines, ensemble, expertise, most_reliable, reliability, shares
from fnll.models import Network, mlp
from fnll.net import Net
from fnll.seeding import derive, torch_rng
from fnll.system.notices import forget
from fnll.testing import Recording, Roundtrip, TinyWorld, play, same, tiny_local
from fnll.tools import predict, two_component_gmm
from fnll.training import fit
from fnll.types import Batch, Call, Client, Samples
from fnll.weights import Weights, nbytes

SETTINGS: dict[str, Any] = {
    "warmup": 2, "k": 2, "alpha": 0.6, "neighbours": "reliable", "finetune_epochs": 1, "sim_space": "softmax",
    "untrained_model": "global", "eval_augment": False, "eval_batch_size": 50, "body_mode": "eval",
    "loss_scale": "min_max", "gmm_reg_covar": 5e-4, "gmm_tol": 1e-2,
}  # fmt: skip


def made(world: TinyWorld, **changes: Any) -> FedRN:
    return FedRN(**{**world.shared(), **SETTINGS, **changes})


def exact(values: list[float]) -> Any:
    return pytest.approx(values, abs=1e-6)


# Reliability by hand


T6_ACCURACY, T6_COSINES = torch.tensor([0.6, 0.9, 0.5, 0.8]).double(), torch.tensor([1, 0.9, 0.2, 0.6]).double()


def test_t6_expertise() -> None:
    assert expertise(T6_ACCURACY).tolist() == exact([0.25, 1, 0, 0.75])


@pytest.mark.parametrize(("alpha", "scores"), [(0.6, [0.55, 0.95, 0, 0.65]), (0.5, [0.625, 0.9375, 0, 0.625])])
def test_t6_reliability(alpha: float, scores: list[float]) -> None:
    assert reliability(0, expertise(T6_ACCURACY), T6_COSINES, alpha).tolist() == exact(scores)


@pytest.mark.parametrize(
    ("k", "chosen", "weights"), [(1, [1], [0.366667, 0.633333]), (2, [1, 3], [0.255814, 0.441860, 0.302326])]
)
def test_t6_neighbours_and_their_weights(k: int, chosen: list[int], weights: list[float]) -> None:
    scores = reliability(0, expertise(T6_ACCURACY), T6_COSINES, 0.6)
    assert most_reliable(scores, 0, k) == chosen
    assert shares([float(scores[n]) for n in [0, *chosen]]) == exact(weights)


def test_t6b_similarity_of_logits_and_of_softmax() -> None:
    logits = torch.tensor([[2.0, 0, -1], [4, 0, -2], [1, 1, -3]])
    assert cosines(logits)[0].tolist() == exact([1, 1, 0.674200])
    assert cosines(logits.softmax(1))[0].tolist() == exact([1, 0.992168, 0.795156])


def test_t7_ensemble() -> None:
    posteriors = torch.tensor([[0.9, 0.4, 0.2, 0.5], [0.8, 0.7, 0.3, 0.45], [0.95, 0.2, 0.6, 0.6]])
    clean = ensemble(posteriors, [0.255814, 0.441860, 0.302326])
    assert clean.tolist() == exact([0.870930, 0.472093, 0.365116, 0.508140])
    assert (clean > 0.5).nonzero().flatten().tolist() == [0, 3]


def test_t15_label_precision_and_recall() -> None:
    chosen, right = torch.zeros(7, dtype=torch.bool), torch.zeros(7, dtype=torch.bool)
    chosen[[0, 1, 2, 3]] = right[[0, 1, 4, 5, 6]] = True
    assert precision_recall(chosen, right) == (0.5, 0.4)


def test_ties_go_to_the_lower_number_and_never_to_the_target() -> None:
    assert most_reliable(torch.tensor([0.5, 0.9, 0.5, 0.9, 0.5]), 1, 3) == [3, 0, 2]
    assert most_reliable(torch.ones(4), 0, 2) == [1, 2]


def test_similarity_to_oneself_is_one_even_where_all_are_equal(warnings_anew: pytest.LogCaptureFixture) -> None:
    scores = reliability(1, torch.zeros(3), torch.full((3,), 0.7), 0.0)
    assert scores.tolist() == [0.5, 1, 0.5]
    assert "similarities are equal" in warnings_anew.text


def test_equal_accuracies_count_one_half(warnings_anew: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert expertise(torch.tensor([0.7, 0.7])).tolist() == [0.5, 0.5]
    assert warnings_anew.text.count("training accuracies are equal") == 1


def test_an_unknown_accuracy_counts_one_half_and_does_not_shift_the_others() -> None:
    assert expertise(torch.tensor([torch.nan, 0.8, 1.0, 0.9])).tolist() == exact([0.5, 0, 1, 0.5])
    assert expertise(torch.tensor([torch.nan, torch.nan])).tolist() == [0.5, 0.5]


def test_rounding_errors_are_not_scaled_up_to_differences() -> None:
    answers = torch.rand(1, 10, generator=torch_rng(0)).expand(5, 10)
    assert (cosines(answers) == 1).all()


def test_an_answer_that_is_not_finite_is_like_nobody() -> None:
    assert cosines(torch.tensor([[1.0, 0], [torch.nan, 0], [1, 0]]))[0].tolist() == [1, 0, 1]


def test_if_nobody_is_reliable_all_votes_count_the_same(warnings_anew: pytest.LogCaptureFixture) -> None:
    assert shares([0.0, 0.0]) == [0.5, 0.5]
    assert "reliability 0" in warnings_anew.text


@pytest.fixture
def warnings_anew(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Fallbacks are logged once a run; here they are logged again."""
    forget()
    caplog.set_level(logging.WARNING)
    return caplog


# The vote of one client, by hand: images of one pixel x = 1, two classes, logits (a, −a)


def one_pixel(*, num_classes: int, input_shape: tuple[int, int, int]) -> Network:
    return Network(nn.Flatten(), nn.Linear(1, num_classes, bias=False))


PIXEL = Net.of(one_pixel, num_classes=2, input_shape=(1, 1, 1))


def believer(a: float) -> Weights:
    return {"head.weight": torch.tensor([[a], [-a]])}


def pixel_client(labels: list[int], memory: dict[str, Any] | None = None) -> Client:
    y = torch.tensor(labels)
    images = InMemory(torch.full((len(y), 1, 1, 1), 255, dtype=torch.uint8))
    data = Samples(images, torch.arange(len(y)), y, y, Transform((0.0,), (1.0,)), 2)
    return Client(0, 5, data, memory or {}, seed=7)


def pixel_method(**changes: Any) -> FedRN:
    local = tiny_local(lr=4.0, momentum=0.0, batch_size=100)  # one step of the head can turn it round
    return FedRN(net=PIXEL, local=local, cohort_size=1, **{**SETTINGS, **changes})


LABELS = [0, 0, 0, 1, 1, 0]  # all images are alike, so two thirds are of class 0 for whoever believes in 0
SAYS_0, SAYS_1 = [True, True, True, False, False, True], [False, False, False, True, True, False]


@pytest.mark.parametrize(("votes", "chosen"), [([0.6, 0.4], SAYS_0), ([0.4, 0.6], SAYS_1), ([0.5, 0.5], [True] * 6)])
def test_the_weightier_vote_decides_without_fine_tuning(votes: list[float], chosen: list[bool]) -> None:
    # Losses: own model log(1 + e⁻⁴) where y = 0, 4 more where y = 1; the neighbour's the other way round. Each mixture
    # is certain, so p(clean) are the votes; at a draw nothing exceeds 1/2, and an empty clean set means everything.
    method = pixel_method(finetune_epochs=0)
    assert done(method.clean_set(pixel_client(LABELS), believer(2), [believer(-2)], votes)).tolist() == chosen


@pytest.mark.parametrize("votes", [[0.6, 0.4], [0.4, 0.6]])
@pytest.mark.parametrize(("own", "chosen"), [(2, SAYS_0), (-2, SAYS_1)])
def test_fine_tuning_adapts_a_neighbour_to_what_the_target_finds_clean(
    own: float, chosen: list[bool], votes: list[float]
) -> None:
    # The auxiliary set is the samples of the class that the target believes in, be it the rarer one. Their gradient for
    # a neighbour of the opposite belief is ±.982, so that one step of rate 4 takes its logit from ∓2 to ±1.93. On all
    # samples the second neighbour's gradient would be .982 − 2/3, and its belief would stay.
    votes_of = pixel_method().clean_set(pixel_client(LABELS), believer(own), [believer(-own)], votes)
    assert done(votes_of).tolist() == chosen


def test_an_empty_clean_set_is_said_once(warnings_anew: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        done(pixel_method(finetune_epochs=0).clean_set(pixel_client(LABELS), believer(2), [believer(-2)], [0.5, 0.5]))
    assert warnings_anew.text.count("no sample of a client is called clean") == 1


def test_equal_losses_are_all_clean() -> None:
    assert done(pixel_method().posterior(PIXEL.load(believer(2)), pixel_client([1] * 5))).tolist() == [1] * 5


def test_one_sample_is_clean() -> None:
    assert done(pixel_method().clean_set(pixel_client([1]), believer(2), [believer(-2)], [0.5, 0.5])).tolist() == [True]


def test_losses_that_are_not_finite_are_the_largest() -> None:
    posterior = done(pixel_method().posterior(PIXEL.load(believer(torch.inf)), pixel_client(LABELS)))
    assert torch.isfinite(posterior).all()


def kept(client: Client, **message: Any) -> list[bool]:
    """The samples that a client is trained on, given the global model `believer(2)`."""
    return done(pixel_method().train(client, weights=believer(2), seed=0, **message)).trace["clean"].tolist()


def test_no_votes_keep_everything() -> None:
    assert kept(pixel_client(LABELS)) == [True] * 6


def test_a_client_asks_its_own_last_model_and_not_the_global_one() -> None:
    remembers = pixel_client(LABELS, {"net": believer(-2)})
    assert kept(remembers, shares=[1.0]) == SAYS_1
    assert kept(pixel_client(LABELS), shares=[1.0]) == SAYS_0


def test_training_sees_the_clean_set_and_accuracy_all_samples() -> None:
    client = pixel_client(LABELS, {"net": believer(2)})
    message = {"weights": believer(0), "seed": 0, "shares": [1.0]}
    call = Call(pixel_method(k=0).train, 0, 5, message, client.memory, None, seed=7)
    update = perform(SimpleNamespace(client=lambda *_, **__: client), call, torch.device("cpu"))
    assert update.trace["clean"].tolist() == SAYS_0
    assert update.report["accuracy"] == pytest.approx(4 / 6)  # trained on class 0 only, judged on all six
    assert update.weights["head.weight"][0] > 0
    assert update.size == 6  # equation 1: its weight in the aggregate is that of all its data
    assert update.memory["net"] is update.weights


# Loss scale and mixture settings


@pytest.mark.parametrize("scale", ["raw", "min_max"])
@pytest.mark.parametrize(("reg_covar", "tol"), [(5e-4, 1e-2), (1e-6, 1e-3)])
def test_the_mixture_is_fitted_to_the_losses_as_told(scale: str, reg_covar: float, tol: float) -> None:
    world = TinyWorld()
    client, net = client_of(world), world.shared()["net"].load(world.shared()["net"].fresh(0)).eval()
    with torch.no_grad():
        losses = F.cross_entropy(net(next(client.scan()).x), client.data.y, reduction="none").double()
    if scale == "min_max":
        losses = (losses - losses.min()) / (losses.max() - losses.min())
    seed = derive(client.seed, "mixture")
    expected = two_component_gmm(losses, seed=seed, reg_covar=reg_covar, tol=tol).posterior
    method = made(world, loss_scale=scale, gmm_reg_covar=reg_covar, gmm_tol=tol)
    assert done(method.posterior(net, client)).tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def client_of(world: TinyWorld, k: int = 0, **changes: Any) -> Client:
    client = world.scenario.client(k, t=0, memory={}, labels=None, seed=11, device=torch.device("cpu"))
    return replace(client, data=replace(client.data, **changes))


# Head tuning


def normalised(*, num_classes: int, input_shape: tuple[int, int, int]) -> Network:
    """A body with running statistics and dropout-free, so that both modes are defined by BatchNorm alone."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU())
    return Network(body, nn.Linear(8, num_classes))


BATCHNORM = Net.of(normalised, num_classes=4, input_shape=(1, 4, 4))


def reference_tuning(peer: Weights, client: Client, body_mode: str, lr: float, momentum: float) -> nn.Module:
    """The released way: back-propagate through everything, with rate 0 for the body."""
    net = BATCHNORM.load(peer).train()
    groups = [{"params": net.body.parameters(), "lr": 0.0}, {"params": net.head.parameters(), "lr": lr}]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum)
    net.body.train(body_mode == "train")
    for batch in client.batches(5, 1, "head"):
        optimizer.zero_grad()
        F.cross_entropy(net(batch.x), batch.y).backward()
        optimizer.step()
    return net


@pytest.fixture
def all_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model finds every sample clean, so that the auxiliary set is everything."""

    def posterior(self: FedRN, net: nn.Module, client: Client) -> Asking[Tensor]:
        yield from ()
        return torch.ones(len(client))

    monkeypatch.setattr(FedRN, "posterior", posterior)


def tuned_by(method: FedRN, peer: Weights, client: Client) -> Weights:
    """A neighbour's network after the one training that the vote asks for."""
    request = next(method.clean_set(client, method.net.fresh(0), [peer], [0.5, 0.5]))
    assert isinstance(request.module, HeadTuning)
    return fit(request).weights


@pytest.mark.usefixtures("all_clean")
@pytest.mark.parametrize("body_mode", ["eval", "train"])
def test_head_tuning_is_training_with_a_body_rate_of_zero(body_mode: str) -> None:
    world = TinyWorld()
    client, peer = client_of(world), BATCHNORM.fresh(3)
    method = made(world, net=BATCHNORM, body_mode=body_mode)
    tuned = tuned_by(method, peer, client)
    expected = reference_tuning(peer, client, body_mode, lr=0.1, momentum=0.5).state_dict()
    for name, value in expected.items():
        assert torch.allclose(tuned[name], value, atol=1e-6), name
    assert not torch.equal(tuned["head.weight"], peer["head.weight"])
    parameters = [name for name, _ in BATCHNORM.load(peer).body.named_parameters()]
    assert all(torch.equal(tuned[f"body.{name}"], peer[f"body.{name}"]) for name in parameters)


@pytest.mark.usefixtures("all_clean")
@pytest.mark.parametrize(("body_mode", "kept"), [("eval", True), ("train", False)])
def test_body_mode_says_whether_running_statistics_drift(body_mode: str, kept: bool) -> None:
    world = TinyWorld()
    peer = BATCHNORM.fresh(3)
    tuned = tuned_by(made(world, net=BATCHNORM, body_mode=body_mode), peer, client_of(world))
    assert torch.equal(tuned["body.2.running_mean"], peer["body.2.running_mean"]) == kept


def test_nothing_is_propagated_back_through_the_body() -> None:
    world = TinyWorld()
    module = HeadTuning(BATCHNORM.load(BATCHNORM.fresh(3)), tiny_local(), 0, body_mode="eval")
    batch = next(client_of(world).batches(12, 1))
    module.loss(batch).backward()
    assert all(parameter.grad is None for parameter in module.net.body.parameters())
    assert all(parameter.grad is not None for parameter in module.net.head.parameters())


@pytest.mark.usefixtures("all_clean")
def test_neighbours_see_the_same_batches_and_training_other_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    plain = HeadTuning.loss

    def spy(self: HeadTuning, batch: Batch) -> Tensor:
        seen.append(batch.index.tolist())
        return plain(self, batch)

    monkeypatch.setattr(HeadTuning, "loss", spy)
    world = TinyWorld()
    client, method = client_of(world), made(world)
    fresh = method.net.fresh
    done(method.clean_set(client, fresh(0), [fresh(1), fresh(2)], [0.4, 0.3, 0.3]))
    steps = len(seen) // 2
    assert steps > 1
    assert seen[:steps] == seen[steps:]
    assert seen[:steps] != [batch.index.tolist() for batch in client.batches(5, 1)]


def test_the_head_learns_at_the_clients_rate_of_the_round() -> None:
    spec = tiny_local(lr=0.1, lr_decay=0.5)
    optimizer = HeadTuning(BATCHNORM.load(BATCHNORM.fresh(0)), spec, 2, body_mode="eval").configure_optimizers()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


# Augmented evaluation and the noise image


@pytest.mark.parametrize("augment", [False, True])
def test_eval_augment_shows_augmented_images_to_losses_and_accuracy(augment: bool) -> None:
    # The augmentation is to flip every image, so an augmented pass sees what a plain one sees of mirrored images.
    world = TinyWorld()
    method = made(world, eval_augment=augment)
    plain, flipping = (Transform((0.5,), (0.25,), flips) for flips in ((), (HorizontalFlip(1.0),)))
    mirrored = InMemory(world.scenario.images.take(torch.arange(len(world.scenario.images))).flip(3))
    client = client_of(world, transform=flipping)
    views = {False: client_of(world, transform=plain), True: client_of(world, transform=plain, images=mirrored)}
    net = method.net.load(method.net.fresh(0))
    assert torch.equal(done(method.posterior(net, client)), done(method.posterior(net, views[augment])))
    update = done(method.train(client, weights=method.net.fresh(1), seed=3))
    trained = method.net.load(update.weights)
    right = {
        flip: float((predict(trained, view).argmax(1) == view.data.y).double().mean()) for flip, view in views.items()
    }
    assert right[False] != right[True]
    assert update.report["accuracy"] == right[augment]


@pytest.mark.parametrize("size", [5, 50])
def test_eval_batch_size_is_that_of_passes_over_the_training_data(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = Network.forward

    def spy(self: Network, x: Tensor) -> Tensor:
        if not self.training:
            seen.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(Network, "forward", spy)
    world = TinyWorld()
    method = made(world, eval_batch_size=size, k=0)
    one_pass = [5, 5, 2] if size == 5 else [12]
    done(method.train(client_of(world), weights=method.net.fresh(1), seed=3, shares=[1.0]))
    assert seen == [*one_pass, *one_pass, 1]  # losses under the own model, training accuracy, the noise image


def test_the_noise_image_is_the_same_for_everyone_and_gaussian() -> None:
    shown: list[Tensor] = []

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            shown.append(x)
            return x.flatten(1)[:, :3] * self.scale

    method = made(TinyWorld())
    first, second = (method.answer(Spy(), 5, (3, 32, 32)) for _ in range(2))
    assert torch.equal(shown[0], shown[1])
    assert shown[0].shape == (1, 3, 32, 32)
    assert abs(float(shown[0].mean())) < 0.1
    assert abs(float(shown[0].std()) - 1) < 0.1
    assert torch.equal(first, second)


@pytest.mark.parametrize("space", ["softmax", "logits"])
def test_sim_space_is_what_clients_report(space: str) -> None:
    world = TinyWorld()
    method = made(world, sim_space=space)
    update = done(method.train(client_of(world), weights=method.net.fresh(1), seed=3))
    logits = made(world, sim_space="logits").answer(method.net.load(update.weights), 3, (1, 4, 4))
    assert torch.equal(update.report["output"], logits.softmax(0) if space == "softmax" else logits)


# Rounds


def federation(world: TinyWorld, t: int, executor: Any = None) -> tuple[Federation, Ledger]:
    ledger = Ledger()
    executor = executor or Serial(world.scenario)
    fed = Federation(world.public, executor, budget=10**6, seed=0, t=t, ledger=ledger)
    return fed, ledger


def test_an_endless_warm_up_is_fedavg_bit_for_bit() -> None:
    world = TinyWorld()
    ours, theirs = (play(m, world)[-1].state.weights for m in (made(world, warmup=10**9), FedAvg(**world.shared())))
    assert same(ours, theirs)


def test_a_warm_up_without_end_is_said(caplog: pytest.LogCaptureFixture) -> None:
    world = TinyWorld()
    play(made(world, warmup=8), world, rounds=8)
    assert "this run is FedAvg" in caplog.text


def test_selection_starts_after_the_warm_up_and_is_recorded() -> None:
    world = TinyWorld()
    rows = federate(made(world, warmup=2), Serial(world.scenario), world.public, budget=12, seed=0)
    ledgers = [ledger for _, ledger in rows]
    assert [ledger.records["stage"] for ledger in ledgers] == ["warm-up", "warm-up", "selection", "selection"]
    assert all(trace.values["clean"].all() for ledger in ledgers[:2] for trace in ledger.traces)
    assert not all(trace.values["clean"].all() for ledger in ledgers[2:] for trace in ledger.traces)
    first, later = ledgers[2].records, ledgers[3].records
    cohort = sorted(trace.client for trace in ledgers[2].traces)
    assert sorted(first["neighbours"]) == sorted(first["scores"]) == cohort
    assert all(len(ids) == 2 and c not in ids for c, ids in first["neighbours"].items())
    assert all(len(scores) == 3 for scores in first["scores"].values())
    assert first["similarity"].shape == (6, 6)
    assert sorted(first["accuracy"]) == sorted(first["expertise"]) == list(range(6))
    assert "similarity" not in later


def test_similarity_is_recorded_at_a_low_frequency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedrn, "RECORD_EVERY", 3)
    world = TinyWorld()
    rows = federate(made(world, warmup=1), Serial(world.scenario), world.public, budget=27, seed=0)
    assert [ledger.records.keys() >= {"similarity"} for _, ledger in rows] == [t in (1, 4, 7) for t in range(9)]


def test_similarity_of_many_clients_is_recorded_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TinyWorld()

    def recorded() -> np.ndarray:
        rows = federate(made(world, warmup=1), Serial(world.scenario), world.public, budget=6, seed=0)
        (matrix,) = [ledger.records["similarity"] for _, ledger in rows if "similarity" in ledger.records]
        return np.asarray(matrix)

    whole = recorded()
    monkeypatch.setattr(fedrn, "ALIKE", 4)
    assert whole.shape == (6, 6)
    assert np.array_equal(recorded(), whole[:4, :4])


@pytest.mark.parametrize("k", [0, 1, 2])
def test_bytes_are_k_plus_one_models_down_and_one_up(k: int) -> None:
    world = TinyWorld()
    method = made(world, k=k, warmup=1)
    model = nbytes(method.net.fresh(0))
    rows = federate(method, Serial(world.scenario), world.public, budget=6, seed=0)
    warm, selecting = (ledger.totals for _, ledger in rows)
    up = model + 8 + 4 * 4  # a model, an accuracy, an answer in four classes
    assert warm.up_bytes == selecting.up_bytes == 3 * up
    assert warm.down_bytes == 3 * (model + 8)  # the global model and the seed of the noise image
    assert selecting.down_bytes == 3 * ((k + 1) * model + 8 + 8 * (k + 1))  # and k models with k + 1 weights


def test_a_local_model_is_kept_once_also_across_processes() -> None:
    world = TinyWorld()
    for executor in (Serial(world.scenario), Roundtrip(world.scenario)):
        last = play(made(world), world, executor=executor)[-1]
        assert sorted(last.clients) == sorted(last.state.locals)
        assert all(last.clients[n].memory["net"] is last.state.locals[n] for n in last.state.locals)


def test_a_checkpoint_holds_each_local_model_once(tmp_path: Path) -> None:
    world = TinyWorld()
    wide = Net.of(mlp, hidden=(2000,), num_classes=4, input_shape=(1, 4, 4))  # large enough for a file of its own
    last = play(made(world, net=wide), world, rounds=2)[-1]
    Checkpoints(tmp_path, "run").save(last, {})
    model = nbytes(last.state.weights)
    stored = sum(path.stat().st_size for path in (tmp_path / "blobs").iterdir())
    copies = len(last.state.locals) + 1  # and the global model
    assert copies * model <= stored < (copies + 0.5) * model


def test_a_target_gets_its_neighbours_last_models() -> None:
    world = TinyWorld()
    executor = Recording(world.scenario)
    snapshots = play(made(world, k=1), world, rounds=3, executor=executor)
    before, calls = snapshots[1].state, [call for call, _ in executor.seen[2]]
    fed, _ = federation(world, 2)
    panels = made(world, k=1)._panels(before, fed, [call.client for call in calls])
    for call, panel in zip(calls, panels, strict=True):
        (n,) = panel.neighbours
        assert call.message["peers"][0] is before.locals.get(n, before.weights)
        assert call.message["shares"] == shares(panel.scores)


def test_the_aggregate_counts_all_samples_and_not_only_the_clean_ones() -> None:
    world = TinyWorld()
    executor = Recording(world.scenario)
    play(made(world, warmup=0), world, rounds=2, executor=executor)
    assert [update.size for _, update in executor.seen[1]] == [12, 12, 12]


def known(world: TinyWorld, method: FedRN, clients: list[int]) -> NeighbourState:
    """A state in which some clients have reported: accuracies .1, .2, ... and distinct models and answers."""
    net = method.net
    return NeighbourState(
        weights=net.fresh(99),
        seed=4,
        locals={n: net.fresh(n) for n in clients},
        accuracy={n: 0.1 * (i + 1) for i, n in enumerate(clients)},
        output={n: F.one_hot(torch.tensor(i % 4), 4).float() + 0.1 for i, n in enumerate(clients)},
    )


def test_untrained_clients_stand_in_as_the_global_model() -> None:
    world = TinyWorld()
    method = made(world, untrained_model="global")
    state = known(world, method, [0, 1, 2])
    fed, _ = federation(world, 5)
    standing = method._standing(state, fed)
    assert standing.expertise.tolist() == exact([0, 0.5, 1, 0.5, 0.5, 0.5])
    answer = method.answer(method.net.load(state.weights), state.seed, (1, 4, 4))
    expected = F.cosine_similarity(answer.double(), state.output[0].double(), dim=0)
    assert cosines(standing.outputs)[0, 3:].tolist() == exact([float(expected)] * 3)
    assert method._local(state, 4) is state.weights
    assert method._local(state, 1) is state.locals[1]


def test_untrained_clients_of_the_released_code_are_random() -> None:
    world = TinyWorld()
    method = made(world, untrained_model="random")
    state = known(world, method, [0, 1])
    state = replace(state, accuracy={0: 0.75, 1: 1.0})
    fed, _ = federation(world, 5)
    standing = method._standing(state, fed)
    assert standing.expertise.tolist() == exact([0.5, 1, 0, 0, 0, 0])  # (.75, 1, .5, .5, ...) scaled
    assert len(set(cosines(standing.outputs)[0].tolist())) == 6  # everyone's answer is another one
    assert same(standing, method._standing(state, fed))
    models = [method._local(state, n) for n in (2, 3)]
    assert not torch.equal(models[0]["head.weight"], models[1]["head.weight"])
    assert not torch.equal(models[0]["head.weight"], state.weights["head.weight"])


def test_an_untrained_target_starts_from_the_model_that_others_know_it_by(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Weights] = []

    def remember(self: FedRN, client: Client, own: Weights, *_: Any) -> Iterator[Any]:
        asked.append(own)
        yield from ()
        return torch.ones(len(client), dtype=torch.bool)

    monkeypatch.setattr(FedRN, "clean_set", remember)
    world = TinyWorld()
    method = made(world, untrained_model="random")
    state = known(world, method, [])
    done(method.train(client_of(world, 3), weights=state.weights, seed=state.seed, shares=[1.0]))
    assert same(asked[0], method._local(state, 3))


def test_empty_clients_are_nobodys_neighbours() -> None:
    world = TinyWorld("empty")
    method = made(world, k=4)
    fed, _ = federation(world, 5)
    panels = method._panels(known(world, method, [0, 2, 3]), fed, [0, 2])
    assert [sorted(panel.neighbours) for panel in panels] == [[2, 3, 4, 5], [0, 3, 4, 5]]


def test_more_neighbours_than_clients_are_all_others(warnings_anew: pytest.LogCaptureFixture) -> None:
    world = TinyWorld()
    method = made(world, k=6)
    fed, _ = federation(world, 5)
    (panel,) = method._panels(known(world, method, [0, 1]), fed, [2])
    assert sorted(panel.neighbours) == [0, 1, 3, 4, 5]
    assert "all 5 of them vote" in warnings_anew.text


def test_random_neighbours_differ_by_round_and_keep_their_scores() -> None:
    world = TinyWorld()
    method, reliable = made(world, neighbours="random"), made(world)
    state = known(world, method, [0, 1, 2, 3, 4, 5])
    drawn = {t: method._panels(state, federation(world, t)[0], [0])[0] for t in range(5, 25)}
    assert len({tuple(panel.neighbours) for panel in drawn.values()}) > 3
    assert all(0 not in panel.neighbours and len(set(panel.neighbours)) == 2 for panel in drawn.values())
    assert drawn[5] == method._panels(state, federation(world, 5)[0], [0])[0]
    others = [[n for n in range(6) if n != c] for c in range(6)]
    panels = method._panels(state, federation(world, 5)[0], list(range(6)))
    places = {tuple(others[c].index(n) for n in panel.neighbours) for c, panel in enumerate(panels)}
    assert len(places) > 1  # each target draws for itself
    everyone = reliable._panels(state, federation(world, 5)[0], [0])[0]
    five = replace(reliable, k=5)._panels(state, federation(world, 5)[0], [0])[0]
    score = dict(zip([0, *five.neighbours], five.scores, strict=True))
    for panel in [*drawn.values(), everyone]:
        assert panel.scores == [score[n] for n in [0, *panel.neighbours]]


@pytest.mark.parametrize(
    ("alpha", "first"),
    [(1.0, 5), (0.0, 4)],  # client 5 is the most accurate; client 4 answers like client 0
)
def test_alpha_weighs_expertise_against_similarity(alpha: float, first: int) -> None:
    world = TinyWorld()
    method = made(world, alpha=alpha, k=1)
    fed, _ = federation(world, 5)
    (panel,) = method._panels(known(world, method, [0, 1, 2, 3, 4, 5]), fed, [0])
    assert panel.neighbours == [first]


def test_it_finds_clean_labels_in_a_noisy_world() -> None:
    world = TinyWorld()
    rows = federate(made(world, warmup=4), Serial(world.scenario), world.public, budget=36, seed=0)
    pairs = []
    for _, ledger in list(rows)[6:]:
        for trace in ledger.traces:
            shard = world.scenario.shards[trace.client]
            right = world.scenario.labels[shard] == world.truth.labels[shard]
            if not right.all():
                pairs.append((precision_recall(trace.values["clean"], right)[0], float(right.double().mean())))
    precision, share = (sum(values) / len(values) for values in zip(*pairs, strict=True))
    assert share == pytest.approx(0.5)
    assert precision > 0.7


# Configs


def test_the_two_configs_differ_exactly_where_paper_and_code_do() -> None:
    paper, official = (OmegaConf.load(config_dir() / "method" / f"{name}.yaml") for name in ("fedrn", "fedrn_official"))
    assert official.pop("name") == "FedRN (released code)"  # for tables; fedrn.yaml is called by its class
    differing = {key: (paper[key], official[key]) for key in paper if paper[key] != official[key]}
    assert paper.keys() == official.keys()
    assert differing == {
        "sim_space": ("softmax", "logits"),
        "untrained_model": ("global", "random"),
        "eval_augment": (False, True),
        "body_mode": ("eval", "train"),
    }


@pytest.mark.parametrize(("dataset", "rounds"), [("cifar10", 500), ("cifar100", 1000), ("webvision_mini", 1000)])
@pytest.mark.parametrize("method", ["fedrn", "fedrn_official", "fedavg"])
def test_presets_are_the_papers_settings(method: str, dataset: str, rounds: int) -> None:
    preset = f"fedrn_tables/{dataset}" if method == "fedavg" else f"{method}_{dataset}"
    cfg = compose([f"method={method}", f"dataset={dataset}", f"preset={preset}"]).cfg
    if (method, dataset) == ("fedrn_official", "cifar100"):
        rounds = 500  # its run script
    assert (cfg.protocol, cfg.rounds, cfg.num_clients, cfg.fraction) == ("paper", rounds, 100, 0.1)
    assert cfg.model._target_ == "fnll.models.cnn4conv"
    assert (cfg.local.lr, cfg.local.momentum, cfg.local.epochs, cfg.local.batch_size) == (0.01, 0.5, 5, 50)
    if method != "fedavg":
        assert (cfg.method.warmup, cfg.method.k, cfg.method.alpha) == (100, 2, 0.6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warmup": -1}, "method.warmup"),
        ({"k": 1.5}, "method.k"),
        ({"alpha": 1.2}, "method.alpha"),
        ({"neighbours": "reliabel"}, "did you mean reliable"),
        ({"sim_space": "softmaxx"}, "did you mean softmax"),
        ({"untrained_model": "local"}, "global or random"),
        ({"body_mode": "frozen"}, "eval or train"),
        ({"loss_scale": "minmax"}, "did you mean min_max"),
        ({"finetune_epochs": -1}, "method.finetune_epochs"),
        ({"eval_batch_size": 0}, "method.eval_batch_size"),
        ({"gmm_reg_covar": -1}, "method.gmm_reg_covar"),
        ({"gmm_tol": -1}, "method.gmm_tol"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        made(TinyWorld(), **changes)


def headless(*, num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, num_classes))


def test_a_network_without_a_head_needs_fine_tuning_off() -> None:
    net = Net.of(headless, num_classes=4, input_shape=(1, 4, 4))
    with pytest.raises(UserError, match="finetune_epochs=0"):
        made(TinyWorld(), net=net)
    world = TinyWorld()
    assert play(made(world, net=net, finetune_epochs=0), world, rounds=4)
