"""A paper's world: what it sets, whom it has, and a label that says how far a run is from it."""

from __future__ import annotations

import pytest

from fnll.errors import UserError
from fnll.harness.config import compose
from fnll.harness.execute import execute
from fnll.harness.identity import settings
from fnll.harness.label import labelled, not_compared
from fnll.harness.prepare import prepare
from fnll.harness.run_folder import DeclinedError


def label(*words: str) -> str:
    return labelled(compose(words)).cfg.protocol


def test_fedavg_in_fedrns_world_is_fedrns():
    cfg = compose(["paper=fedrn/cifar10", "method=fedavg"]).cfg
    assert (cfg.rounds, cfg.num_clients, cfg.fraction, cfg.budget) == (500, 100, 0.1, "rounds")
    assert (cfg.local.lr, cfg.local.batch_size, cfg.local.epochs, cfg.local.momentum) == (0.01, 50, 5, 0.5)
    assert cfg.model._target_.endswith("cnn4conv")
    assert (cfg.partition.per_client, cfg.noise.kind, cfg.noise.high) == (2, "symmetric", 0.4)
    assert (cfg.paper.trials, cfg.paper.metric, cfg.eval.batch_size) == (3, "test/accuracy", 128)


def test_another_partition_or_noise_takes_nothing_of_the_worlds_own_with_it():
    cfg = compose(["paper=fedrn/cifar100", "partition=dirichlet", "noise=none"]).cfg
    assert "per_client" not in cfg.partition
    assert "kind" not in cfg.noise
    assert compose(["paper=fedrn/cifar100"]).cfg.partition.per_client == 20
    assert compose(["paper=fednoro/isic2019"]).cfg.partition == {
        "_target_": "fnll.scenario.partition.partitions.BernoulliDirichlet", "p": 0.99, "alpha": 1.5, "min_size": 1,
    }  # fmt: skip


def test_fedrns_oracle_deletes_wrong_labels():
    assert compose(["paper=fedrn/cifar10", "method=oracle"]).cfg.scenario.oracle == "drop_noisy"
    assert compose(["method=oracle"]).cfg.scenario.oracle == "true_labels"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["paper=fedrn/cifar10"], "paper"),
        (["paper=fedrn/cifar10", "seed=3", "dataset.root=elsewhere", "device=cpu", "diagnostics_every=0"], "paper"),
        (["paper=fednoro/ich", "rounds=30"], "paper, but rounds 30 (100)"),
        (["paper=fedrn/cifar10", "dataset.images=folder"], "paper, but dataset.images folder (batches)"),
        (["paper=fedcorr/cifar10", "method=fedcorr", "method.beta=1"], "paper, but method.beta 1 (5)"),
        (["paper=fedcorr/cifar10", "partition=quantity"], "paper, but partition quantity (iid)"),
        (["paper=fedrn/cifar10", "method=sce", "paper.methods=null"], "paper, but method sce (not in it)"),
        (["rounds=30"], "shared"),
    ],
)
def test_the_label_says_what_differs(words, expected):
    assert label(*words) == expected


def test_many_differences_are_counted():
    said = label("paper=fednoro/ich", "rounds=3", "local.lr=1", "fraction=0.5", "num_clients=5", "local.epochs=1")
    assert said == "paper, but fraction 0.5 (1), local.epochs 1 (5), local.lr 1 (0.0003) and 2 more"


def test_the_label_cannot_be_typed():
    with pytest.raises(UserError, match="protocol is found out, not set"):
        label("protocol=paper")


def test_the_label_is_no_part_of_a_runs_name_but_its_being_a_papers_is():
    assert settings(labelled(compose(["paper=fednoro/ich", "rounds=30"])))["protocol"] == "paper"
    assert "paper" not in settings(compose(["paper=fednoro/ich"]))


def test_a_method_that_the_paper_lacks_is_declined(tmp_path):
    tiny = ["dataset=synthetic", "dataset.samples=40", "dataset.test_samples=10", "dataset.size=16", "num_clients=4"]
    words = ["paper=fedrn/cifar10", "partition=iid", "noise=none", *tiny, "rounds=1", f"runs_dir={tmp_path}"]
    experiment = prepare(compose([*words, "method=fedprox"]))
    with pytest.raises(DeclinedError, match=r"paper=fedrn/cifar10 has no fedprox: FedRN's paper compares oracle, .*"):
        execute(experiment)
    assert not_compared(compose([*words, "method=fedavg"])) is None
    assert not_compared(compose([*words, "method=fedprox", "paper.methods=null"])) is None


@pytest.mark.parametrize(
    ("old", "method", "new"),
    [
        ("paper", "selfie", "fedrn/cifar10"),
        ("paper", "arfl", "fedcorr/cifar10"),
        ("fedrn_tables/cifar10", "fedavg", "fedrn/cifar10"),
        ("fedrn_tables/rofl_cifar10", "rofl", "fedrn/cifar10"),
        ("fedcorr_tables/jointopt_centralised_cifar10", "jointopt", "fedcorr/cifar10_centralised"),
        ("shared", "fedavg", "none"),
    ],
)
def test_presets_of_01_are_understood(old, method, new, caplog):
    request = compose([f"preset={old}", f"method={method}", "dataset=cifar10"])
    assert request.choices["paper"] == new
    assert f"preset={old} is called paper={new} since 0.2" in caplog.text


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("paper=fedrn/cifar", "there is no paper=fedrn/cifar; did you mean fedrn/cifar10"),
        ("preset=fedrn_mnist", "there is no preset called 'fedrn_mnist' any more; type paper=NAME/DATA"),
    ],
)
def test_a_paper_that_there_is_not(word, message):
    with pytest.raises(UserError, match=message):
        compose([word])
