"""Runs driven together in one process: each has the numbers, the folder, the warnings and the failures it has alone."""

import errno
import json
import logging

import pytest

from fnll.errors import UserError
from fnll.executors.together import Block
from fnll.harness.choices import options
from fnll.harness.status import warnings_in
from fnll.local import Classifier
from fnll.methods.fedavg import FedAvg
from fnll.sweep.abreast import Abreast
from fnll.sweep.events import Begun, Ended, Ending, Evaluated, Said
from fnll.sweep.grid import PlannedRun
from fnll.sweep.perform import perform
from fnll.system.notices import warn_once
from fnll.testing import subject_of

METHODS = sorted(options("method"))
WORLD = (
    "dataset=synthetic", "dataset.samples=90", "dataset.test_samples=30", "dataset.classes=3", "dataset.size=8",
    "model=mlp", "model.hidden=[6]", "num_clients=4", "fraction=0.5", "local.epochs=2", "rounds=3",
    "executor=vectorised", "partition=dirichlet",
)  # fmt: skip
LONGER = ("rounds=12", "local.epochs=3")  # so that every method leaves its warm-up, and steps are traced
TOLERANCE = 1e-3  # of the test loss, which moves with every weight


def planned(runs_dir, method="fedavg", seed=0, *more):
    words = (*WORLD, f"method={method}", f"seed={seed}", f"runs_dir={runs_dir}", *more)
    return PlannedRun(words, method, seed=str(seed))


def together(runs):
    """Drive `runs` to their ends; returns what each said."""
    company, said = Abreast(), {run: [] for run in runs}
    for run in runs:
        company.add(run, said[run].append)
    turns = 0
    while len(company):
        company.turn()
        turns += 1
    return said, turns


def outcome(events):
    return events[-1].outcome


def losses(runs_dir):
    """The test losses of every run in a store, by run."""
    return {
        path.parent.name: [json.loads(line)["test/loss"] for line in path.read_text().splitlines()]
        for path in runs_dir.glob("*/metrics.jsonl")
    }


def agree(left, right):
    assert left.keys() == right.keys() != set()
    for name, values in left.items():
        assert values == pytest.approx(right[name], abs=TOLERANCE)


@pytest.fixture
def lanes(monkeypatch):
    counted, real = [], Block.__init__

    def count(self, lanes, *args, **kwargs):
        counted.append(len(lanes))
        real(self, lanes, *args, **kwargs)

    monkeypatch.setattr(Block, "__init__", count)
    return counted


def test_runs_agree_with_themselves_alone_and_share_steps(tmp_path, lanes):
    alone = [planned(tmp_path / "alone", "fedavg", seed) for seed in range(3)]
    for run in alone:
        assert perform(run, lambda event: None).kind is Ending.FINISHED
    assert max(lanes) == 2
    runs = [planned(tmp_path / "together", "fedavg", seed) for seed in range(3)]
    said, turns = together(runs)
    assert turns == 3
    assert max(lanes) == 6, "the clients of three runs in one block"
    agree(losses(tmp_path / "alone"), losses(tmp_path / "together"))
    for events in said.values():
        assert len([event for event in events if isinstance(event, Begun)]) == 1
        assert [event.step for event in events if isinstance(event, Evaluated)] == [1, 2, 3]
        assert isinstance(events[-1], Ended)


def test_the_same_runs_in_another_order_and_company_agree(tmp_path):
    names = ["fedavg", "fedprox", "fedla"]
    here = [planned(tmp_path / "a", name, seed) for name in names for seed in range(2)]
    there = [planned(tmp_path / "b", name, seed) for seed in (1, 0) for name in reversed(names)]
    together(here)
    together(there[:2])
    together(there[2:])
    agree(losses(tmp_path / "a"), losses(tmp_path / "b"))


def test_what_does_not_stack_is_said_once(tmp_path):
    said, _ = together([planned(tmp_path, "rofl", seed) for seed in range(2)])
    lines = [event.text for events in said.values() for event in events if isinstance(event, Said)]
    (line,) = [text for text in lines if "one client at a time" in text]
    assert line.startswith("executor=vectorised does job train one client at a time: ")


def staged(name):
    """Words under which six rounds take a method through its stages, with every client of a run in one step."""
    return ("rounds=6", "fraction=1.0", *(f"method.{key}={value}" for key, value in subject_of(name).short_run.items()))


@pytest.mark.parametrize("name", ["fedavg", "fedcorr", "fedrn"])  # what they ask for: training, predictions, mixtures
def test_clients_of_several_runs_agree_with_each_run_alone(tmp_path, name):
    check_company(tmp_path, name, *staged(name))


@pytest.mark.slow
@pytest.mark.parametrize("words", [LONGER, ("model=small_cnn", "model.width=2", "model.hidden=6")], ids=["mlp", "cnn"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_agrees_with_itself_in_any_company(tmp_path, name, words):
    """Alone, among sixteen lanes of its own kind and others, and in another order: what docs/speed.md states."""
    check_company(tmp_path, name, *staged(name), *words)


def check_company(tmp_path, name, *words):
    for seed in range(4):
        assert perform(planned(tmp_path / "alone", name, seed, *words), lambda event: None).kind is Ending.FINISHED
    for place, seeds in (("company", (0, 1, 2, 3)), ("order", (3, 1, 2, 0))):
        plain = [word for word in words if not word.startswith("method.")]
        others = [planned(tmp_path / f"{place}-others", other, 9, *plain) for other in ("fedavg", "poc")]
        said, _ = together([others[0], *(planned(tmp_path / place, name, seed, *words) for seed in seeds), others[1]])
        assert all(outcome(events).kind is Ending.FINISHED for events in said.values())
        agree(losses(tmp_path / "alone"), losses(tmp_path / place))


def test_typed_twice_from_scratch_gives_the_same_bits(tmp_path):
    for place in ("a", "b"):
        together([planned(tmp_path / place, "fedavg", seed) for seed in range(3)])
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


def test_one_that_fails_leaves_the_others_alone(tmp_path, monkeypatch):
    real = FedAvg.train

    def train(self, client, *args, **message):
        if client.t == 1 and self.cohort_size == 1:
            raise ArithmeticError("this client cannot be reached")
        return real(self, client, *args, **message)

    monkeypatch.setattr(FedAvg, "train", train)
    good = [planned(tmp_path / "together", "fedavg", seed) for seed in range(2)]
    bad = planned(tmp_path / "together", "fedavg", 0, "fraction=0.25")
    said, _ = together([good[0], bad, good[1]])
    assert outcome(said[bad]).kind is Ending.FAILED
    assert "this client cannot be reached" in outcome(said[bad]).detail
    assert [outcome(said[run]).kind for run in good] == [Ending.FINISHED] * 2
    for seed in range(2):
        perform(planned(tmp_path / "alone", "fedavg", seed), lambda event: None)
    finished = {name: rows for name, rows in losses(tmp_path / "together").items() if len(rows) == 3}
    agree(losses(tmp_path / "alone"), finished)


def test_a_run_that_was_killed_is_resumed_among_others(tmp_path):
    store = tmp_path / "killed"
    runs = [planned(store, "fedavg", seed, "checkpoint_seconds=0") for seed in range(2)]
    company = Abreast()
    for run in runs:
        company.add(run, lambda event: None)
    company.turn()
    company.turn()
    for run in list(company._members.values()):
        run.close()  # as if the process had died after a round or two: nothing is marked as finished
    said, turns = together(runs)
    assert turns < 3, "it went on from its checkpoint"
    assert all(outcome(events).kind is Ending.FINISHED for events in said.values())
    together([planned(tmp_path / "whole", "fedavg", seed, "checkpoint_seconds=0") for seed in range(2)])
    agree(losses(store), losses(tmp_path / "whole"))


def test_finished_and_declined_runs_are_told_as_ever(tmp_path):
    first = planned(tmp_path, "fedavg", 0)
    together([first])
    wrong = planned(tmp_path, "fedavg", 0, "rounds=0")
    said, _ = together([first, wrong])
    assert outcome(said[first]).kind is Ending.KNOWN
    assert outcome(said[wrong]).kind is Ending.FAILED


def test_each_run_keeps_its_own_warnings(tmp_path, monkeypatch):
    real = FedAvg.aggregate

    def aggregate(self, state, updates, fed):
        logging.getLogger("fnll.methods.fedavg").warning("cohorts of %d", self.cohort_size)
        return real(self, state, updates, fed)

    monkeypatch.setattr(FedAvg, "aggregate", aggregate)
    runs = [planned(tmp_path, "fedavg", 0, f"fraction={fraction}") for fraction in (0.5, 1.0)]
    handlers = logging.getLogger().handlers
    said, _ = together(runs)
    assert logging.getLogger().handlers == handlers
    told = [[text for text in outcome(said[run]).warnings if "cohorts" in text] for run in runs]
    assert told == [["cohorts of 2"], ["cohorts of 4"]]
    kept = {line["text"] for path in tmp_path.iterdir() for line in warnings_in(path) if "cohorts" in line["text"]}
    assert kept == {"cohorts of 2", "cohorts of 4"}


class Talking(Classifier):
    """Warns where a client's batch is drawn, and where the loss of all is computed."""

    def draw(self, batch, client):
        logging.getLogger("fnll.methods.mine").warning("a client of %d samples", len(client))
        return batch

    def loss(self, batch):
        warn_once(logging.getLogger("fnll.methods.mine"), "an odd loss")
        return super().loss(batch)


def test_warnings_of_stacked_work_are_those_of_the_runs_that_it_is_done_for(tmp_path, monkeypatch, lanes):
    monkeypatch.setattr(FedAvg, "module", lambda self, client, weights: Talking(self.net.load(weights), self.local))

    def kept(store):
        return sorted(sorted(line["text"] for line in warnings_in(path)) for path in store.glob("fedavg-*"))

    for seed in range(2):
        perform(planned(tmp_path / "alone", "fedavg", seed, "executor=serial"), lambda event: None)
    runs = [planned(tmp_path / "together", "fedavg", seed) for seed in range(2)]
    said, _ = together(runs)
    assert max(lanes) == 4
    first, second = kept(tmp_path / "together")
    assert [first, second] == kept(tmp_path / "alone")
    assert {*first} != {*second}, "the two have clients of other sizes"
    for run in runs:
        assert "an odd loss" in [event.text for event in said[run] if isinstance(event, Said)]


def test_a_file_that_a_method_may_not_read_fails_its_run_and_blocks_nothing(tmp_path, monkeypatch):
    def aggregate(self, state, updates, fed):
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/teacher.pt")

    monkeypatch.setattr(FedAvg, "aggregate", aggregate)
    found = perform(planned(tmp_path), lambda event: None)
    assert found.kind is Ending.FAILED
    assert "/elsewhere/teacher.pt" in found.detail
    assert "cannot write" not in found.detail


def test_other_executors_run_as_before(tmp_path):
    run = planned(tmp_path, "fedavg", 0, "executor=serial")
    said, turns = together([run])
    assert turns == 0
    assert outcome(said[run]).kind is Ending.FINISHED


def test_the_size_of_a_group_is_checked(tmp_path):
    from fnll.sweep.launchers import launcher_of

    with pytest.raises(UserError, match=r"sweep\.together"):
        launcher_of({"launcher": "local", "together": 0}, [planned(tmp_path)], 1, tmp_path)
