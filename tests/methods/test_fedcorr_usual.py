"""FedCorr's figure 4: FedDyn, Median and Power-of-Choice as its last stage, from the command line to the manifest."""

import json

import pytest
import torch

from fnll.cli.run import main as run
from fnll.harness.config import compose
from fnll.harness.making import privileges
from fnll.methods.fedcorr import FedCorr
from fnll.methods.feddyn import FedDyn, FedDynState
from fnll.methods.median import Median
from fnll.methods.poc import PowerOfChoice
from fnll.testing import CHECKS, Recording, Subject, TinyWorld, play, run_check, same

INNER = {"feddyn": FedDyn, "median": Median, "poc": PowerOfChoice}
RULES = ("crosses_processes", "state_roundtrips", "empty_client", "one_sample_client")


def begins(history):
    """The position of the last stage's first round."""
    return next(i for i, snapshot in enumerate(history) if snapshot.state.usual is not None)


@pytest.fixture(scope="module", params=INNER)
def subject(request):
    node = compose(["method=fedcorr", f"method@method.usual={request.param}"]).cfg.method
    return Subject(request.param, node)


@pytest.mark.parametrize("rule", RULES)
def test_it_keeps_the_rules(subject, rule):
    result = run_check(subject, CHECKS[rule])
    assert result.outcome == "passed", result.detail


def test_it_can_be_cut_where_the_last_stage_begins(subject):
    world, whole = TinyWorld(), subject.plain_run
    for i in (begins(whole) - 1, begins(whole)):
        assert same(play(subject.method(world), world, resume=whole[i])[-1], whole[-1])


def test_the_last_stage_is_that_method_on_fedcorrs_model_and_labels(subject):
    world = TinyWorld()
    method = subject.method(world)
    inner = method.usual
    assert isinstance(method, FedCorr)
    assert type(inner) is INNER[subject.name]
    assert (inner.net, inner.local, inner.cohort) == (method.net, method.local, method.cohort)
    history = subject.plain_run
    last, before = history[-1].state, begins(history) - 1
    assert same(dict(last.weights), dict(last.usual.weights))
    assert same(method.model(last).state_dict(), inner.model(last.usual).state_dict())
    plain = play(subject.method(world, usual=None), world)
    assert same(plain[before].state.weights, history[before].state.weights), "stages 1 and 2 are FedCorr's"
    assert not same(dict(plain[-1].state.weights), dict(last.weights))


@pytest.mark.parametrize("subject", ["feddyn"], indirect=True)
def test_feddyns_corrections_start_with_the_stage_and_are_its_own(subject):
    history = subject.plain_run
    first, last = history[begins(history)], history[-1]
    assert isinstance(last.state.usual, FedDynState)
    assert {key for kept in last.clients.values() for key in kept.memory} == {"losses", "usual/h"}
    h = [kept.memory["usual/h"] for kept in first.clients.values() if "usual/h" in kept.memory]
    assert len(h) == 3, "those of the first cohort"
    total = torch.stack([part["head.bias"] for part in h]).sum(0)
    assert torch.allclose(first.state.usual.correction["head.bias"], total / 6, atol=1e-6)


@pytest.mark.parametrize("subject", ["poc"], indirect=True)
def test_candidates_are_asked_for_the_loss_of_corrected_labels(subject):
    world = TinyWorld("all_noisy")
    executor = Recording(world.scenario)
    settings = {"confidence": 0.0, "relabel_ratio": 1.0, "clean_level": 0.0, "usual.candidates": 5}
    play(subject.method(world, **settings), world, executor=executor)
    asked = [call for calls in executor.seen for call, _ in calls if call.name == "probe"]
    assert asked
    assert any(call.labels is not None for call in asked)


def test_both_methods_privileges_are_reported(subject):
    method = subject.method(TinyWorld())
    inside = [
        f"{said} ({INNER[subject.name].__name__} inside)" for said in getattr(INNER[subject.name], "privileges", ())
    ]
    assert privileges(method) == [*FedCorr.privileges, *inside]
    assert privileges(subject.method(TinyWorld(), usual=None)) == list(FedCorr.privileges)


def test_a_run_from_the_command_line(tmp_path, capsys):
    small = ["dataset=synthetic", "dataset.samples=120", "num_clients=6", "model=mlp", "rounds=8", "noise.rho=0.5"]
    stages = ["method.passes=2", "method.finetune=2", "eval.overlap=false", "local.epochs=1"]
    run(["method=fedcorr", "method@method.usual=poc", *small, *stages, f"runs_dir={tmp_path}"])
    (folder,) = tmp_path.glob("fedcorr-*")
    told = json.loads((folder / "manifest.json").read_text())["privileges"]
    assert told == [*FedCorr.privileges, *(f"{said} (PowerOfChoice inside)" for said in PowerOfChoice.privileges)]
    facts = [json.loads(line) for line in (folder / "diagnostics.jsonl").read_text().splitlines()]
    assert {fact["stage"] for fact in facts if fact["name"] == "candidate_losses"} == {"usual"}
