"""The two oracles: FedAvg on corrected labels, and on what is left without the wrong ones."""

from pathlib import Path

import pytest
import torch

from fnll.cli.methods import describe
from fnll.federation import World, federate
from fnll.harness.execute import execute
from fnll.harness.prepare import prepare
from fnll.methods.fedavg import FedAvg
from fnll.report.analysis import analyse
from fnll.report.store import load
from fnll.scenario import assemble
from fnll.testing import Recording, TinyWorld
from fnll.testing.store import write_run
from fnll.testing.worlds import CLASSES, CLIENTS
from fnll.weights import all_finite
from tiny import TINY, compose

HALF = [*TINY, "fraction=0.5", "rounds=2"]
ROWS = ("oracle", "oracle_true_labels", "oracle_drop_noisy")


def prepared(method: str, *more: str):
    return prepare(compose([*HALF, f"method={method}", "noise.rho=0.6", "noise.tau=0.5", *more]))


def test_each_uses_the_truth_in_its_own_way() -> None:
    noisy, short, corrected, dropped = (prepared(name) for name in ("fedavg", *ROWS))
    right = noisy.scenario.labels == noisy.truth.labels
    assert 0 < int(right.sum()) < len(right)
    assert torch.equal(corrected.scenario.labels, noisy.truth.labels)
    assert corrected.scenario.sizes == noisy.scenario.sizes
    assert short.scenario.fingerprint == corrected.scenario.fingerprint
    assert torch.equal(dropped.scenario.labels, noisy.scenario.labels)
    for before, after in zip(noisy.scenario.shards, dropped.scenario.shards, strict=True):
        assert after.tolist() == before[right[before]].tolist()
    assert {one.scenario.origin for one in (short, corrected, dropped)} == {noisy.scenario.fingerprint}


@pytest.mark.parametrize("name", ROWS)
def test_without_noise_it_is_fedavg(name: str, tmp_path: Path) -> None:
    plain, ours = (
        execute(prepare(compose([*HALF, "noise=none", f"method={method}", f"runs_dir={tmp_path}"])))
        for method in ("fedavg", name)
    )
    assert plain["fingerprint"] == ours["fingerprint"]
    assert plain["test/loss"] == ours["test/loss"]


def test_a_client_without_a_right_label_is_never_drawn() -> None:
    world = TinyWorld("clean")
    observed = world.dataset.labels.clone()
    observed[world.scenario.shards[1]] = (observed[world.scenario.shards[1]] + 1) % CLASSES
    nominal = torch.zeros(CLIENTS, dtype=torch.float64)
    scenario, _ = assemble(world.dataset, world.scenario.shards, observed, nominal, oracle="drop_noisy")
    assert [k for k, size in enumerate(scenario.sizes) if size == 0] == [1]
    executor = Recording(scenario)
    public = World(scenario.sizes, scenario.num_classes, scenario.input_shape)
    method = FedAvg(**world.shared(cohort=CLIENTS))
    *_, (last, _) = federate(method, executor, public, budget=2 * CLIENTS, seed=0)
    assert {call.client for part in executor.seen for call, _ in part} == set(range(CLIENTS)) - {1}
    assert all_finite(last.state.weights)


def test_what_they_are_given_is_said() -> None:
    assert describe("oracle_true_labels")["privileges"] == ["the true labels (an upper bound, not a method)"]
    assert describe("oracle_drop_noisy")["privileges"] == ["which labels are wrong (an upper bound, not a method)"]


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        (ROWS, "oracle"),
        (("oracle_drop_noisy", "oracle_true_labels"), "oracle_true_labels"),
        (("oracle_drop_noisy",), "oracle_drop_noisy"),
        ((), None),
    ],
)
def test_a_report_measures_the_gap_to_the_first_there_is(rows: tuple[str, ...], chosen: str, tmp_path: Path) -> None:
    how = {"oracle": "true_labels", "oracle_true_labels": "true_labels", "oracle_drop_noisy": "drop_noisy"}
    for seed in range(3):
        for method, value in {"fedavg": 0.5, "fedprox": 0.6, **dict.fromkeys(rows, 0.7)}.items():
            config = {"scenario.oracle": how.get(method, "none")}
            write_run(tmp_path, method, [value + seed / 100] * 10, seed=seed, config=config)
    analysis = analyse(load(tmp_path))
    assert analysis.oracle == chosen
    assert analysis.competing == ["fedavg", "fedprox"]
    if chosen:
        assert analysis.recovered["share"].tolist() == pytest.approx([0.5])


@pytest.mark.parametrize(("dataset", "rounds"), [("cifar10", 500), ("cifar100", 1000)])
def test_presets_are_fedrns(dataset: str, rounds: int) -> None:
    cfg = compose(["method=oracle_drop_noisy", f"dataset={dataset}", "preset=paper"]).cfg
    assert (cfg.protocol, cfg.rounds, cfg.scenario.oracle) == ("paper", rounds, "drop_noisy")
    assert (cfg.num_clients, cfg.local.lr, cfg.local.batch_size) == (100, 0.01, 50)
