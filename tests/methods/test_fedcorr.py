"""FedCorr's stages: each server decision on a small table by hand, each switch alone, the budget, the usual stage.

Where a decision is tested, the clients' training is replaced by tables: `Tables` answers with given LID scores, losses
and weights, and everything else is the method's own. Weights whose bias favours one class by far make a global model
that is sure of that class everywhere.
"""

import json
import logging
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import get_args, get_type_hints

import pytest
import torch
from driving import done
from omegaconf import OmegaConf

from fnll.cli.run import main as run
from fnll.errors import UserError
from fnll.executors import Serial
from fnll.federation import Federation, World, federate
from fnll.harness.config import compose
from fnll.harness.prepare import complete, made, prepare
from fnll.images import HorizontalFlip
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedcorr import FedCorr, FedCorrState
from fnll.methods.fedcorr_labels import candidates, lid_score, relabelled, sample_losses
from fnll.methods.fedcorr_local import Mixup
from fnll.methods.fedprox import FedProx
from fnll.report import figures, load
from fnll.testing import Recording, TinyWorld, play, same
from fnll.tools import predict
from fnll.types import CPU, Update

OFFICIAL = {
    "sample_loss": "double_softmax",
    "prox": "norm_after_first_batch",
    "mixup_stages": [1, 2, 3],
    "rank_model": "local",
    "rank_pool": "all_samples",
    "conf_op": "above",
    "stage2_relabel_set": "last_noisy_clients",
    "lid_small_n": "keep_k",
    "eval_augment": True,
    "stage1_replacement": True,
    "lid_cap": None,
}
PAPER = {
    "sample_loss": "cross_entropy",
    "prox": "squared",
    "rank_model": "global",
    "rank_pool": "noisy_samples",
    "conf_op": "at_least",
    "stage2_relabel_set": "above_clean_level",
    "lid_small_n": "shrink_k",
    "eval_augment": False,
    "stage1_replacement": False,
}
LEVEL_LOSSES = torch.tensor([0.1, 5.0, 0.2, 4.0, 0.1, 3.0, 0.2, 0.1, 0.2, 0.1, 0.2, 6.0])  # D^n = {1, 3, 5, 11}
FLAT_LOSSES = torch.full((12,), 0.5)


@pytest.fixture(scope="module")
def world():
    return TinyWorld()


@pytest.fixture(scope="module")
def settings():
    node = OmegaConf.to_container(compose(["method=fedcorr"]).cfg.method)  # lists as a method gets them
    return {str(key): value for key, value in node.items() if not str(key).startswith("_")}


@pytest.fixture
def make(world, settings):
    """A FedCorr for the tiny world of six clients: two iterations, two rounds of fine-tuning, cohorts of three."""

    def of(kind=FedCorr, cohort=3, **changes):
        return kind(**world.shared(cohort), **{**settings, "passes": 2, "finetune": 2, **changes})

    return of


def federation(world, t: int, budget: int = 100, executor=None, clients=None) -> Federation:
    executor = executor or Serial(world.scenario)
    return Federation(world.public, executor, budget=budget, seed=0, t=t, clients=clients)


def sure_of(method, label: int) -> dict:
    """Weights of a model that gives every image `label` with a probability of nearly 1."""
    weights = {name: torch.zeros_like(value) for name, value in method.net.fresh(0).items()}
    bias = next(name for name in weights if name.startswith("head.") and name.endswith("bias"))
    weights[bias][label] = 20.0
    return weights


@dataclass(frozen=True, kw_only=True)
class Tables(FedCorr):
    """FedCorr whose clients do not train: they report the LID of the table and remember its losses."""

    lids: tuple
    losses: tuple

    def preprocess(self, client, weights, level):
        return Update(sure_of(self, 1), report={"lid": self.lids[client.id]}, memory={"losses": self.losses[client.id]})


def rounds_of(method, world, budget: int, executor=None):
    return list(
        federate(method, executor or Serial(world.scenario), world.public, budget=budget, seed=0),
    )


# Stage 1: who is noisy, how noisy, and what is relabelled


def test_an_iteration_on_a_table(make, world):
    """Clients 0, 2 and 5 have high LID. Client 0 finds four samples of twelve noisy, 2 cannot tell any, 5 finds one."""
    one = FLAT_LOSSES + torch.tensor([0.0] * 11 + [3.0]) + torch.linspace(0, 0.01, 12)
    losses = (LEVEL_LOSSES, FLAT_LOSSES, FLAT_LOSSES, FLAT_LOSSES, FLAT_LOSSES, one)
    method = make(Tables, passes=1, finetune=0, lids=(5.0, 1.0, 5.2, 1.1, 0.9, 4.9), losses=losses)
    history = rounds_of(method, world, budget=7)
    snapshot, ledger = history[5]  # the sixth visit ends the iteration
    assert snapshot.state.noisy == (0, 2, 5)
    assert snapshot.state.levels.tolist() == pytest.approx([4 / 12, 0, 0, 0, 0, 1 / 12])
    assert snapshot.state.cumulative_lid.tolist() == [5.0, 1.0, 5.2, 1.1, 0.9, 4.9]
    # f_G is sure of class 1. Of client 0's D^n the ⌊4 · ½⌋ samples with the largest loss under f_G are relabelled:
    observed = world.scenario.labels[world.scenario.shards[0]]
    wrong_for_the_model = [i for i in (1, 3, 5, 11) if observed[i] != 1]
    worst = (wrong_for_the_model + [i for i in (1, 3, 5, 11) if observed[i] == 1])[:2]
    expected = observed.clone()
    expected[worst] = 1
    assert snapshot.clients[0].labels.tolist() == expected.tolist()
    # client 2 has nothing to relabel, client 5 ⌊1 · ½⌋ = 0 samples; the others were not asked
    assert same(snapshot.clients[2].labels, world.scenario.labels[world.scenario.shards[2]])
    assert same(snapshot.clients[5].labels, world.scenario.labels[world.scenario.shards[5]])
    assert all(snapshot.clients[k].labels is None for k in (1, 3, 4))
    assert ledger.records["noisy_clients"] == [0, 2, 5]
    found = {trace.client: (~trace.values["clean"]).nonzero().flatten().tolist() for trace in ledger.traces}
    assert found == {0: [1, 3, 5, 11], 2: [], 5: [11]}  # for figure 7, and for the evaluator's eyes only


def test_scores_accumulate_over_iterations(make, world):
    """In iteration 2 the scores cross (client 3 is highest), but their sums still single out clients 0 and 1."""

    @dataclass(frozen=True, kw_only=True)
    class Crossing(Tables):
        def preprocess(self, client, weights, level):
            table = self.lids[0] if client.t < 6 else self.lids[1]
            return Update(weights, report={"lid": table[client.id]}, memory={"losses": FLAT_LOSSES})

    tables = ((9.0, 9.2, 1.0, 1.1, 0.9, 1.0), (1.0, 1.1, 1.2, 2.0, 1.0, 1.1))
    history = rounds_of(make(Crossing, finetune=0, lids=tables, losses=()), world, budget=13)
    after = [snapshot.state for snapshot, _ in history]
    assert after[5].cumulative_lid.tolist() == [9.0, 9.2, 1.0, 1.1, 0.9, 1.0]
    assert after[11].cumulative_lid.tolist() == pytest.approx([10.0, 10.3, 2.2, 3.1, 1.9, 2.1])
    assert after[5].noisy == after[11].noisy == (0, 1)
    assert after[11].lid.tolist() == [1.0, 1.1, 1.2, 2.0, 1.0, 1.1]


def test_levels_of_the_last_iteration_weigh_the_proximal_term(make, world):
    executor = Recording(world.scenario)
    losses = (LEVEL_LOSSES,) * 6
    method = make(Tables, finetune=0, lids=(5.0, 1.0, 5.2, 1.1, 0.9, 4.9), losses=losses)
    rounds_of(method, world, 13, executor)
    visits = [call for calls in executor.seen for call, _ in calls if call.name == "preprocess"]
    assert all(call.message["level"] == 0 for call in visits[:6])
    assert {call.client: round(call.message["level"], 6) for call in visits[6:]} == {
        0: 0.333333, 1: 0.0, 2: 0.333333, 3: 0.0, 4: 0.0, 5: 0.333333
    }  # fmt: skip


def test_equal_scores_make_nobody_noisy(make, world):
    executor = Recording(world.scenario)
    method = make(Tables, passes=1, finetune=0, lids=(2.0,) * 6, losses=(LEVEL_LOSSES,) * 6)
    state = rounds_of(method, world, 7, executor)[5][0].state
    assert state.noisy == ()
    assert not state.levels.any()
    assert "inspect" not in {call.name for calls in executor.seen for call, _ in calls}


def test_a_client_without_a_score_counts_as_clean(make, world, caplog):
    method = make(Tables, finetune=0, lids=(5.0, math.nan, 5.2, 1.1, 0.9, 4.9), losses=(LEVEL_LOSSES,) * 6)
    with caplog.at_level(logging.INFO):
        history = rounds_of(method, world, 13)
    state = history[11][0].state
    assert state.noisy == (0, 2, 5)
    assert state.levels[1] == 0
    assert math.isnan(history[11][1].records["lid"][1])
    assert [r.getMessage() for r in caplog.records if "LID" in r.getMessage()] == [
        "clients [1] have no LID score (too few samples, or predictions that are not finite); they count as clean"
    ]  # logged once, not in every iteration


def test_records_of_an_iteration(make, world):
    history = rounds_of(make(), world, budget=24)
    ends = [t for t, (_, ledger) in enumerate(history) if "lid" in ledger.records]
    assert ends == [5, 11]
    facts = history[11][1].records
    assert {"noisy_clients", "noise_levels", "lid", "cumulative_lid", "lid_gmm"} <= facts.keys()
    first, second = (history[t][1].records for t in ends)
    assert torch.equal(second["cumulative_lid"], first["lid"] + second["lid"])
    assert {name: tuple(value.shape) for name, value in facts["lid_gmm"].items()} == {
        "means": (2,), "variances": (2,), "weights": (2,)
    }  # fmt: skip


def test_one_client_after_the_other(make, world):
    executor = Recording(world.scenario)
    history = rounds_of(make(), world, 24, executor)
    trained = [calls for calls in executor.seen if calls and calls[0][0].name == "preprocess"]
    assert [len(calls) for calls in trained] == [1] * 12
    order = [calls[0][0].client for calls in trained]
    assert sorted(order[:6]) == sorted(order[6:]) == list(range(6))
    assert order[:6] != order[6:]  # shuffled anew
    for before, after in pairwise(trained):  # each client continues from the one before
        assert same(after[0][0].message["weights"], before[0][1].weights)
    assert same(history[0][0].state.weights, trained[0][0][1].weights)


# The client's jobs, and each switch on its own


@pytest.fixture
def client(world):
    """Client 0 of a world whose augmentation flips every image."""
    transform = replace(world.scenario.transform, augmentations=(HorizontalFlip(1.0),))
    scenario = replace(world.scenario, transform=transform)

    def of(**changes):
        found = scenario.client(0, t=0, memory={}, labels=None, seed=3, device=CPU)
        return replace(found, **changes)

    return of


def test_preprocess_scores_the_trained_model(make, client):
    method = make()
    update = done(method.preprocess(client(), method.net.fresh(1), level=0.0))
    logits = predict(method.net.load(update.weights), client())
    assert update.report == {"lid": lid_score(logits, 20, 100.0, "shrink_k")}
    assert same(update.memory, {"losses": sample_losses(logits, client().data.y, "cross_entropy")})


@pytest.mark.parametrize(
    ("switch", "memory", "report"),
    [("sample_loss", True, False), ("lid_small_n", False, True), ("eval_augment", True, True)],
)
def test_switches_of_scoring(make, client, switch, memory, report):
    """Which of the losses and the LID score a switch changes; the trained weights are the same."""
    start = make().net.fresh(1)
    methods = make(), make(**{switch: OFFICIAL[switch]})
    ours, theirs = (done(m.preprocess(client(), start, level=0.0)) for m in methods)
    assert same(ours.weights, theirs.weights)
    assert (not same(ours.memory, theirs.memory), not same(ours.report, theirs.report)) == (memory, report)
    logits = predict(make().net.load(ours.weights), client(), augment=switch == "eval_augment")
    if switch == "sample_loss":
        assert same(theirs.memory["losses"], sample_losses(logits, client().data.y, "double_softmax"))
    if switch == "lid_small_n":  # twelve samples have eleven neighbours
        assert theirs.report["lid"] / ours.report["lid"] == pytest.approx(20 / 11)
    if switch == "eval_augment":
        assert same(theirs.memory["losses"], sample_losses(logits, client().data.y, "cross_entropy"))


def test_switch_prox_changes_training_of_noisy_clients_only(make, client):
    start = make().net.fresh(1)
    for level in (0.0, 0.4):
        ours, theirs, none = (
            done(m.preprocess(client(), start, level)).weights
            for m in (make(), make(prox="norm_after_first_batch"), make(beta=0.0))
        )
        assert same(ours, theirs) is same(ours, none) is (level == 0)


def remembering(client, losses=LEVEL_LOSSES):
    return client(memory={"losses": losses})


def labels_after(method, client, weights) -> list[int]:
    update = done(method.inspect(client, weights))
    assert update.labels is not None
    return update.labels.tolist()


def test_switch_rank_model(make, client):
    """D^n = {1, 3, 5, 11} and room for two: by the remembered losses 11 and 1, by f_G those it finds most wrong."""
    mine = remembering(client)
    mine = replace(mine, data=replace(mine.data, y=torch.tensor([0, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0])))
    method = make()
    weights = sure_of(method, 1)
    bias = next(name for name in weights if name.startswith("head.") and name.endswith("bias"))
    weights[bias] = torch.tensor([5.0, 20.0, 0.0, 0.0])  # label 2 costs 20, label 0 costs 15
    changed = [i for i, y in enumerate(labels_after(make(rank_model="local"), mine, weights)) if y == 1]
    assert changed == [1, 11]
    changed = [i for i, y in enumerate(labels_after(method, mine, weights)) if y == 1]
    assert changed == [1, 3]


def test_switch_rank_pool(make, client):
    """Under f_G samples 0 and 2 are most wrong, but they are not in D^n = {1, 3, 5, 11}."""
    mine = remembering(client)
    mine = replace(mine, data=replace(mine.data, y=torch.tensor([2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0])))
    weights = sure_of(make(), 1)
    bias = next(name for name in weights if name.startswith("head.") and name.endswith("bias"))
    weights[bias] = torch.tensor([5.0, 20.0, 0.0, 0.0])
    assert [i for i, y in enumerate(labels_after(make(), mine, weights)) if y == 1] == [1, 3]
    other = make(rank_pool="all_samples")  # ⌊12 · (4/12) · ½⌋ = 2 of all
    assert [i for i, y in enumerate(labels_after(other, mine, weights)) if y == 1] == [0, 2]


@pytest.mark.parametrize("job", ["inspect", "relabel"])
def test_switch_conf_op(make, client, job):
    """A model that gives classes 1 and 2 a probability of exactly one half relabels at θ = 0.5 in the paper only."""
    method = make()
    weights = {name: torch.zeros_like(value) for name, value in method.net.fresh(0).items()}
    bias = next(name for name in weights if name.startswith("head.") and name.endswith("bias"))
    weights[bias] = torch.tensor([-200.0, 0.0, 0.0, -200.0])
    mine = remembering(client)
    ours = done(getattr(method, job)(mine, weights=weights)).labels
    theirs = done(getattr(make(conf_op="above"), job)(mine, weights=weights)).labels
    assert theirs.tolist() == mine.data.y.tolist()
    changed = (ours != mine.data.y).nonzero().flatten()
    assert len(changed)
    assert (ours[changed] == 1).all()


def test_switch_eval_augment_of_relabelling(make, client):
    method, mine = make(confidence=0.0), remembering(client)
    weights = method.net.fresh(1)
    for augment in (False, True):
        logits = predict(method.net.load(weights), mine, augment=augment)
        everything = relabelled(mine.data.y, logits, torch.arange(12), 0.0, "at_least")
        assert same(done(make(confidence=0.0, eval_augment=augment).relabel(mine, weights)).labels, everything)
        noisy = torch.isin(torch.arange(12), torch.tensor([1, 3, 5, 11]))
        worst = candidates(sample_losses(logits, mine.data.y, "cross_entropy"), noisy, 0.5, "noisy_samples")
        some = relabelled(mine.data.y, logits, worst, 0.0, "at_least")
        assert same(done(make(confidence=0.0, eval_augment=augment).inspect(mine, weights)).labels, some)


@pytest.mark.parametrize(("stages", "mixing"), [([1], [False, False]), ([1, 2, 3], [True, True]), ([2], [True, False])])
def test_switch_mixup_stages(make, world, stages, mixing):
    executor = Recording(world.scenario)
    method = make(passes=0, finetune=1, mixup_stages=stages)
    rounds_of(method, world, 6, executor)
    calls = [calls[0][0] for calls in executor.seen if calls]
    assert [call.message.get("mixing", False) for call in calls] == mixing
    for call, mixed in zip(calls, mixing, strict=True):
        owner = world.scenario.client(0, t=0, memory={}, labels=None, seed=0, device=CPU)
        assert isinstance(method.module(owner, **call.message), Mixup) is mixed


def test_mixup_of_stage_1(make, client):
    start = make().net.fresh(1)
    ours, without = (done(m.preprocess(client(), start, 0.0)).weights for m in (make(), make(mixup_stages=[])))
    plain = FedAvg(**{name: getattr(make(), name) for name in ("net", "local", "cohort_size")})
    assert not same(ours, without)
    assert same(without, done(plain.train(client(), weights=start)).weights)  # nothing but cross-entropy is left


def test_switch_stage1_replacement(make, world):
    """With cohorts of three out of six: two rounds per iteration either way, but the released code repeats clients."""
    ours = rounds_of(make(stage1_cohort=3), world, 19)
    assert all(sorted(sum(s.state.visits, ())) == list(range(6)) for s, _ in ours[:4])
    method = make(stage1_cohort=3, stage1_replacement=True, passes=6, finetune=0)
    executor = Recording(world.scenario)
    theirs = rounds_of(method, world, 37, executor)
    assert [s.totals.client_updates for s, _ in theirs[:12]] == [3 * (i + 1) for i in range(12)]
    cohorts = [s.state.visits[i % 2] for i, (s, _) in enumerate(theirs[:12])]
    assert any(len(set(cohort)) < 3 for cohort in cohorts)
    for t in range(1, 12, 2):  # who was never visited in an iteration has score 0 in it, and is not inspected
        state, records = theirs[t][0].state, theirs[t][1].records
        visited = {k for cohort in state.visits for k in cohort}
        assert all((records["lid"][k] > 0) == (k in visited) for k in range(6))
        assert all(state.levels[k] == 0 for k in range(6) if k not in visited)


def test_official_config_is_the_paper_with_every_switch_turned():
    paper, official = (dict(compose([f"method={name}"]).cfg.method) for name in ("fedcorr", "fedcorr_official"))
    changed = {key: value for key, value in official.items() if paper[key] != value}
    assert changed == OFFICIAL
    assert {key: paper[key] for key in PAPER} == PAPER
    hints = get_type_hints(FedCorr)
    words = [key for key, value in PAPER.items() if isinstance(value, str)]
    assert {key: get_args(hints[key]) for key in words} == {key: (PAPER[key], OFFICIAL[key]) for key in words}


# Stage 2: relatively clean clients, then the others relabel


def state_with(method, levels, noisy=(), label: int = 1) -> FedCorrState:
    zeros = torch.zeros(6, dtype=torch.float64)
    levels = torch.tensor(levels, dtype=torch.float64)
    return FedCorrState(sure_of(method, label), (), zeros, zeros, levels, tuple(noisy), None)


def test_stage_2_trains_clients_up_to_kappa(make, world):
    executor = Recording(world.scenario)
    method = make(passes=0, finetune=2, cohort=6)
    fed = federation(world, t=0, executor=executor)
    method.round(state_with(method, [0.0, 0.1, 0.11, 0.5, 0.05, 1.0]), fed)
    assert [call.client for call, _ in executor.seen[0]] == [0, 1, 4]  # μ̂ = κ is clean
    assert len(executor.seen) == 1  # nobody relabels before the last round of the stage


@pytest.mark.parametrize(
    ("relabel_set", "expected"), [("above_clean_level", [2, 3, 5]), ("last_noisy_clients", [1, 2, 5])]
)
def test_switch_stage2_relabel_set(make, world, relabel_set, expected):
    """Client 1 was called noisy with a level below κ; client 3 was not, with one above κ; client 4 is at κ: clean."""
    executor, clients = Recording(world.scenario), {}
    method = make(passes=0, finetune=2, stage2_relabel_set=relabel_set)
    fed = federation(world, t=1, executor=executor, clients=clients)
    state = method.round(state_with(method, [0.0, 0.05, 0.3, 0.5, 0.1, 1.0], noisy=(1, 2, 5)), fed)
    calls = executor.seen[1]
    assert [(call.name, call.client) for call, _ in calls] == [("relabel", k) for k in expected]
    assert all(call.message["weights"] is state.weights for call, _ in calls)  # the model after the last round
    assert sorted(k for k, kept in clients.items() if kept.labels is not None) == expected


def test_relabelling_after_stage_2_takes_every_confident_prediction(make, world, client):
    method = make()
    assert done(method.relabel(client(), sure_of(method, 3))).labels.tolist() == [3] * 12
    unsure = {name: torch.zeros_like(value) for name, value in method.net.fresh(0).items()}
    assert same(done(method.relabel(client(), unsure)).labels, client().data.y)  # four classes at ¼ each


def test_without_clean_clients_stage_2_takes_the_least_noisy(make, world, caplog):
    executor = Recording(world.scenario)
    method = make(passes=0, finetune=3)
    state = state_with(method, [0.9, 0.3, 0.2, 0.5, 0.3, 0.3])
    with caplog.at_level(logging.WARNING):
        for t in range(2):
            state = method.round(state, federation(world, t, executor=executor))
    assert [[call.client for call, _ in calls] for calls in executor.seen] == [[1, 2, 4]] * 2  # ties: lower number
    said = [record.getMessage() for record in caplog.records]
    assert said == ["no client's noise level is at most 0.1; stage 2 uses [1, 2, 4]"]


# Stages, budget, ablations


def test_stages_and_what_they_cost(make, world):
    history = rounds_of(make(clean_level=1.0), world, budget=24)
    assert [ledger.records["stage"] for _, ledger in history] == (
        ["preprocessing"] * 12 + ["finetuning"] * 2 + ["usual"] * 2
    )
    assert [snapshot.totals.client_updates for snapshot, _ in history][11:] == [12, 15, 18, 21, 24]


class Instant:
    """Answers every job at once, so that runs of the paper's length can be counted."""

    exact = True

    def map(self, calls):
        trains = {"preprocess": Update({}, {"lid": 1.0}), "train": Update({})}
        return [replace(trains.get(c.name, Update(report={"level": 0.0})), client=c.client, size=1) for c in calls]


@pytest.mark.parametrize(
    ("dataset", "changes", "stages"),
    [  # with the cost of each stage (appendix B)
        ("cifar10", [], {"preprocessing": 500, "finetuning": 5000, "usual": 4500}),
        ("cifar100", [], {"preprocessing": 500, "finetuning": 2250, "usual": 2250}),
        ("clothing1m", [], {"preprocessing": 1000, "finetuning": 500, "usual": 500}),
        ("ich", [], {"preprocessing": 40, "finetuning": 1000, "usual": 1000}),  # FedNoRo's appendix C
        ("isic2019", [], {"preprocessing": 100, "finetuning": 3000, "usual": 3000}),
        ("cifar10", ["method.finetune=0", "rounds=500"], {"preprocessing": 500, "usual": 4500}),
        ("cifar10", ["method.finetune=null", "rounds=550"], {"preprocessing": 500, "finetuning": 5000}),
    ],
)
def test_costs_of_the_papers_runs(world, dataset, changes, stages):
    cfg = compose(["method=fedcorr", f"dataset={dataset}", f"preset=fedcorr_{dataset}", *changes]).cfg
    assert cfg.protocol == "paper"
    cohort = round(cfg.fraction * cfg.num_clients)
    method = complete(made(cfg.method, "method"), world.shared(cohort), "method")
    public = World((1,) * cfg.num_clients, 10, (3, 32, 32))
    spent, before = {}, 0
    for snapshot, ledger in federate(method, Instant(), public, budget=cfg.rounds * cohort, seed=0):
        stage = ledger.records["stage"]
        spent[stage] = spent.get(stage, 0) + snapshot.totals.client_updates - before
        before = snapshot.totals.client_updates
    assert spent == stages


def test_a_budget_that_leaves_nothing_is_refused(make, world):
    with pytest.raises(UserError) as error:
        make().init(federation(world, t=-1, budget=18))
    assert str(error.value) == (
        "FedCorr needs 18 client updates before stage 3 begins, and the budget is 18 (rounds 6 × 3 clients); "
        "raise rounds to at least 7, or lower method.passes (2) or method.finetune (2), "
        "or go without stage 3: method.finetune=null"
    )
    make().init(federation(world, t=-1, budget=21))


def test_a_budget_that_stage_1_uses_up_is_refused(make, world):
    """Then method.finetune=null would not help, and there is no method.finetune to lower."""
    for finetune in (None, 0, 2):
        with pytest.raises(UserError) as error:
            make(finetune=finetune).init(federation(world, t=-1, budget=12))
        assert "null" not in str(error.value)
        assert ("method.finetune" in str(error.value)) is (finetune == 2)
        assert "method.passes (2)" in str(error.value)
    make(finetune=None).init(federation(world, t=-1, budget=15))
    with pytest.raises(UserError, match=r"at least 3, or lower method\.finetune \(2\), or go"):
        make(passes=0).init(federation(world, t=-1, budget=6))


def test_without_stage_3(make, world):
    history = rounds_of(make(finetune=None, clean_level=1.0), world, budget=24)
    assert [ledger.records["stage"] for _, ledger in history] == ["preprocessing"] * 12 + ["finetuning"] * 4


def test_without_correction(make, world):
    executor = Recording(world.scenario)
    losses = (LEVEL_LOSSES,) * 6
    table = {"lids": (5.0, 1.0, 5.2, 1.1, 0.9, 4.9), "losses": losses}
    history = rounds_of(make(Tables, correction=False, **table), world, 24, executor)
    assert all(kept.labels is None for kept in history[-1][0].clients.values())
    assert history[-1][0].state.levels[0] == pytest.approx(4 / 12)  # still estimated: stage 2 needs it
    inspected = [call for calls in executor.seen for call, _ in calls if call.name == "inspect"]
    assert [call.message for call in inspected] == [{"weights": None}] * 6  # nothing is sent for nothing


def test_without_fraction_scheduling(make, world):
    executor = Recording(world.scenario)
    rounds_of(make(stage1_cohort=None), world, 24, executor)
    assert [len(calls) for calls in executor.seen if calls and calls[0][0].name == "preprocess"] == [3] * 4


def test_without_stages_1_and_2_it_is_fedavg_in_weights_and_bytes(make, world):
    ours = play(make(passes=0, finetune=0), world)[-1]
    reference = play(FedAvg(**world.shared()), world)[-1]
    assert same(ours.state.weights, reference.state.weights)
    assert ours.totals == reference.totals


def test_corrected_labels_are_what_later_stages_train_on(make, world):
    """Clients 3 to 5 relabel to class 2 at the end of stage 2; from then on they train on that."""
    executor, clients = Recording(world.scenario), {}

    @dataclass(frozen=True, kw_only=True)
    class Sure(FedCorr):
        def aggregate(self, state, updates, fed):
            return sure_of(self, 2)

    method = make(Sure, passes=0, finetune=1)
    state = state_with(method, [0.0, 0.0, 0.0, 0.5, 0.5, 0.5])
    state = method.round(state, federation(world, 0, executor=executor, clients=clients))
    fed = federation(world, 1, executor=executor, clients=clients)
    fed.map(method.train, [3, 4, 5], weights=state.weights)
    for call, _ in executor.seen[-1]:
        assert call.name == "train"
        assert call.labels is clients[call.client].labels
        assert (call.labels == 2).all()
    assert [call.client for call, _ in executor.seen[-1]] == [3, 4, 5]


# The usual stage as another method


def test_usual_fedprox_from_the_command_line():
    words = ["method=fedcorr", "method@method.usual=fedprox", "method.usual.mu=0.1", "dataset=synthetic"]
    run = prepare(compose(words))
    usual = run.method.usual
    assert isinstance(usual, FedProx)
    assert usual.mu == 0.1
    assert (usual.net, usual.cohort) == (run.method.net, run.method.cohort_size)
    assert run.run_id.startswith("fedcorr-")


def test_usual_method_with_nothing_of_its_own_is_the_usual_stage(make, world):
    inner = FedProx(**world.shared(), mu=0.0, form="half_squared")
    ours, theirs = (play(make(usual=usual), world)[-1] for usual in (None, inner))
    assert same(ours.state.weights, theirs.state.weights)
    assert ours.totals == theirs.totals


def test_usual_method_keeps_its_own_state_clock_and_memory(make, world):
    """FedProx with a learning rate that halves every round: its clock starts at 0 when stage 3 begins."""
    shared = world.shared(lr_decay=0.5, keep_optimizer=True)
    inner = FedProx(**shared, mu=0.5, form="half_squared")
    executor = Recording(world.scenario)
    method = make(usual=inner, clean_level=1.0)
    history = [snapshot for snapshot, _ in rounds_of(method, world, 24, executor)]
    assert [snapshot.state.usual is None for snapshot in history] == [True] * 14 + [False] * 2
    last = history[-1]
    assert last.state.weights is last.state.usual.weights
    trained = [calls for calls in executor.seen if calls and calls[0][0].name == "train"]
    assert [calls[0][0].t for calls in trained] == [12, 13, 0, 1]
    keys = {key for kept in last.clients.values() for key in kept.memory}
    assert keys == {"losses", "usual/optimizer"}
    assert same(method.model(last.state).state_dict(), inner.model(last.state.usual).state_dict())
    assert not same(last.state.weights, play(make(clean_level=1.0), world)[-1].state.weights)


# Mistakes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"passes": -1}, "method.passes must be a whole number of at least 0 or a share such as 20%, got -1"),
        ({"finetune": 2.5}, "method.finetune must be a whole number"),
        ({"stage1_cohort": 0}, "method.stage1_cohort must be a whole number of at least 1"),
        ({"relabel_ratio": 1.5}, r"method.relabel_ratio must be in \[0, 1\]"),
        ({"confidence": -0.1}, r"method.confidence must be in \[0, 1\]"),
        ({"clean_level": 2}, r"method.clean_level must be in \[0, 1\]"),
        ({"beta": -1}, "method.beta must be at least 0"),
        ({"mixup_alpha": 0}, "method.mixup_alpha must be greater than 0"),
        ({"mixup_stages": 1}, "method.mixup_stages must be a list, each of it a whole number from 1 to 3, got 1"),
        (
            {"mixup_stages": "none"},
            "method.mixup_stages must be a list, each of it a whole number from 1 to 3, got .none",
        ),
        ({"correction": "maybe"}, "method.correction must be true or false, got 'maybe'"),
        ({"eval_augment": "some"}, "method.eval_augment must be true or false, got 'some'"),
        ({"mixup_stages": [0, 1]}, "method.mixup_stages must be a list, each of it a whole number from 1 to 3"),
        ({"lid_neighbours": 1}, "method.lid_neighbours must be a whole number of at least 2"),
        ({"lid_cap": 0}, "method.lid_cap must be greater than 0"),
        ({"rank_pool": "everything"}, "method.rank_pool must be noisy_samples or all_samples, got 'everything'"),
    ],
)
def test_settings_that_make_no_sense(make, changes, words):
    with pytest.raises(UserError, match=words):
        make(**changes)


def test_mixup_in_a_stage_that_another_method_does(make, world):
    with pytest.raises(UserError, match=r"method\.usual"):
        make(mixup_stages=[1, 2, 3], usual=FedAvg(**world.shared()))


# A whole run


def test_a_run_writes_what_the_papers_figures_need(tmp_path, capsys):
    small = ["dataset=synthetic", "dataset.samples=240", "num_clients=6", "model=mlp", "rounds=8", "noise.rho=0.5"]
    stages = ["method.passes=2", "method.finetune=2", "eval.overlap=false"]
    run(["method=fedcorr", *small, *stages, f"runs_dir={tmp_path}"])
    (folder,) = tmp_path.glob("fedcorr-*")
    facts = [json.loads(line) for line in (folder / "diagnostics.jsonl").read_text().splitlines()]
    by_name = {}
    for fact in facts:
        by_name.setdefault(fact["name"], []).append(fact["value"])
    assert [len(by_name[name]) for name in ("lid", "cumulative_lid", "lid_gmm", "noise_levels")] == [2] * 4  # fig. 3, 6
    assert min(len(by_name[name]) for name in ("per_client_noise", "confusion", "sample_detection")) >= 2  # 7, 8
    assert all(len(value) == 6 for value in by_name["lid"] + by_name["cumulative_lid"] + by_name["noise_levels"])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["preprocessing"] * 4 + ["finetuning"] * 2 + ["usual"] * 2
    assert {"detect/recall", "detect/precision", "levels/error"} <= rows[1].keys()


def test_stages_that_end_between_two_evaluations_are_recorded_all_the_same(tmp_path, capsys):
    """Seven clients, three a round: stage 1 ends after 14 updates, stage 2 after 17; evaluations fall at 12 and 17."""
    small = ["dataset=synthetic", "dataset.samples=210", "num_clients=7", "model=mlp", "rounds=7", "noise.rho=0.5"]
    stages = ["method.passes=2", "method.finetune=1", "method.clean_level=0", "fraction=0.43", "eval.overlap=false"]
    run(["method=fedcorr", *small, *stages, f"runs_dir={tmp_path}"])
    store = load(tmp_path)
    run_id = store.runs["run_id"].iloc[0]
    told = [(fact["step"], fact["t"], fact["stage"]) for fact in store.facts(run_id, "confusion")]
    assert told == [(0, 0, "given"), (3, 7, "preprocessing"), (5, 14, "preprocessing"), (5, 15, "finetuning")]
    rows = [ax.get_ylabel().split("\n")[0] for ax in figures.fedcorr_8(store, run_id).axes[::6]]
    assert rows == ["given", "preprocessing", "finetuning"]
