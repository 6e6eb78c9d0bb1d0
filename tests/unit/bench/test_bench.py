"""`fnll bench`: the arithmetic of its clocks and ratios, that it measures the same work on both sides, and its output.

No test looks at how long anything took.
"""

import json

import pytest
import torch

from fnll.bench import SUITES, growth
from fnll.bench.bare import Processes, loop, ready_made
from fnll.bench.clock import Clock, instrumented
from fnll.bench.lid import compare
from fnll.bench.measure import Stopwatch, take_turns
from fnll.bench.memory import _slope
from fnll.bench.phases import PHASES
from fnll.bench.probe import distinct_bytes
from fnll.bench.result import Claim, SuiteResult, Timing, faster
from fnll.bench.subjects import clients_of, first_calls, local_of, run_of, trained
from fnll.cli import main
from fnll.executors import Serial

SMALL = (
    "dataset=synthetic", "dataset.samples=60", "dataset.test_samples=20", "dataset.classes=3", "dataset.size=8",
    "model=mlp", "model.hidden=[4]", "num_clients=4", "fraction=1.0", "local.epochs=2",
)  # fmt: skip


class Hands:
    """A clock that is moved by hand."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def hands(monkeypatch):
    moved = Hands()
    monkeypatch.setattr("time.perf_counter", moved)
    return moved


@pytest.fixture
def forked(fork_server, monkeypatch):
    """Bare processes come from the tests' own server: what they do is the same, and torch is imported once."""
    monkeypatch.setattr("fnll.bench.bare.START", "forkserver")


def test_inner_phases_are_not_charged_to_outer_ones(hands):
    clock = Clock()
    with clock.phase("method"):
        hands.now += 1
        with clock.phase("step"):
            hands.now += 10
        hands.now += 2
        with clock.phase("step"):
            hands.now += 20
    hands.now += 100
    with clock.phase("data"):
        hands.now += 5
    assert clock.seconds == {"method": 3, "step": 30, "idle": 100, "data": 5}


def test_a_phase_ends_when_its_function_fails(hands):
    clock = Clock()

    def fails():
        hands.now += 1
        raise KeyError

    with pytest.raises(KeyError):
        clock.timed("copy", fails)()
    with clock.phase("step"):
        hands.now += 7
    assert clock.seconds == {"idle": 0, "copy": 1, "step": 7}


def test_variants_take_turns(hands):
    order = []

    def variant(name, seconds):
        def run(watch):
            order.append(name)
            hands.now += 1000  # preparation is not timed
            with watch:
                hands.now += seconds
            return 50

        return run

    timings = take_turns({"a": variant("a", 2.0), "b": variant("b", 5.0)}, 3)
    assert order == ["a", "b"] * 3
    assert timings["a"].wall == (2, 2, 2)
    assert timings["b"].best == 5
    assert timings["b"].rate == 10
    assert faster(timings, "a", "b") == 2.5


def test_ratios_use_the_least_disturbed_repetition():
    timings = {"ours": Timing((100, 100), (2.0, 4.0), (0, 0)), "bare": Timing((200, 200), (9.0, 2.0), (0, 0))}
    assert faster(timings, "ours", "bare") == 0.5
    uncounted = {"1 job": Timing((0,), (30.0,), (0,)), "2 jobs": Timing((0,), (15.0,), (0,))}
    assert faster(uncounted, "2 jobs", "1 job") == 2.0


def test_claims_know_whether_they_hold():
    assert Claim("a", 0.95, at_least=0.95).holds is True
    assert Claim("a", 0.94, at_least=0.95).holds is False
    assert Claim("a", 1.15, at_most=1.15).holds is True
    assert Claim("a", 1.16, at_most=1.15).holds is False
    assert Claim("a", 1.0).holds is None


def test_both_sides_train_on_the_same_batches():
    """The bare loop ends with the weights that the executor returns, so the ratio compares the same arithmetic."""
    run = run_of(SMALL)
    calls, spec = first_calls(run), local_of(run)
    (client, *_) = clients = clients_of(run, calls)
    assert trained(run, calls) == sum(len(y) for _, y in ready_made(clients, spec)) == 120
    (update, *_) = Serial(run.scenario).map(calls)
    module = run.net.load(calls[0].message["weights"])
    optimizer = spec.optimizer(module.parameters(), lr=spec.lr)
    for x, y in ready_made([client], spec):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    for name, value in module.state_dict().items():
        assert torch.equal(value, update.weights[name])


@pytest.mark.parametrize("start", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_bare_processes_share_out_the_clients(start, fork_server, monkeypatch):
    monkeypatch.setattr("fnll.bench.bare.START", start)
    run = run_of(SMALL)
    clients, spec = clients_of(run, first_calls(run)), local_of(run)
    with Processes(run.net, spec, clients, 2) as processes:
        assert processes(Stopwatch()) == loop(run.net, spec, ready_made(clients, spec), Stopwatch()) == 120


def test_every_phase_is_seen(forked):
    """A round that evaluates spends time in every phase; a name that moved in the library would show as a zero."""
    record = SUITES["phases"]((*SMALL, "rounds=30", "checkpoint_seconds=0"), repeat=2).record()
    seconds = record["facts"]["seconds_per_round"]
    assert tuple(seconds) == PHASES
    assert all(value > 0 for value in seconds.values()), seconds
    assert record["facts"]["samples_per_round"] == 120
    assert record["timings"]["round"]["samples"] == [120, 120]
    claims = {claim["name"]: claim["value"] for claim in record["claims"]}
    assert claims.keys() > {"round / bare loop", "records and checkpoints / round"}
    assert claims["records and checkpoints / round"] == pytest.approx(seconds["records"] / sum(seconds.values()))


def test_a_vectorised_round_is_seen_as_steps(forked):
    record = SUITES["phases"]((*SMALL, "rounds=30", "executor=vectorised"), repeat=1).record()
    assert record["facts"]["executor"] == "vectorised"
    assert record["facts"]["samples_per_round"] == 120
    assert record["facts"]["seconds_per_round"]["step"] > 0


def test_the_clock_leaves_the_library_as_it_was():
    import fnll.training as library

    before = library._stepper
    with instrumented(Clock()):
        assert library._stepper is not before
    assert library._stepper is before


@pytest.mark.parametrize(
    ("suite", "words"),
    [
        ("train", SMALL),
        ("round", SMALL),
        ("vectorised", (*SMALL[:5], "num_clients=4", "local.epochs=1")),
        ("stage1", SMALL),
    ],
)
def test_suites_end_with_ratios(suite, words, forked):
    result = SUITES[suite](words, repeat=1)
    assert isinstance(result, SuiteResult)
    assert result.timings
    assert all(claim.value > 0 for claim in result.claims)
    assert any(claim.holds is not None for claim in result.claims)
    json.dumps(result.record())


def test_lid_gives_the_values_of_the_references_it_is_timed_against(monkeypatch):
    assert {claim.name for claim in compare(120, 5, repeat=1).claims} == {
        "lid / numpy, full sort",
        "lid / scipy's cdist, full sort",
    }
    monkeypatch.setattr("fnll.bench.lid.by_cdist", lambda probs: torch.ones(len(probs)).numpy())
    with pytest.raises(AssertionError):
        compare(120, 5, repeat=1)


def test_growth_looks_at_every_stage():
    few, many = 12, 24
    result = growth.compare(("local.batch_size=2",), {"fedavg": (few, many), "fedcorr": (few, many)})
    rounds = result.facts["seconds"]
    stages = {"fedavg": ["train"], "fedcorr": ["preprocessing", "finetuning", "usual"]}
    named = [f"{method}, {stage}, {n} clients" for method in stages for n in (few, many) for stage in stages[method]]
    assert list(rounds) == named
    assert {len(rounds[f"fedcorr, preprocessing, {n} clients"]) for n in (few, many)} == {few, many}
    assert all(claim.value > 0 for claim in result.claims)
    json.dumps(result.record())


def test_growth_does_not_count_what_clients_do(hands):
    class Working:
        exact = True

        def map(self, calls):
            hands.now += 5
            return []

        def close(self):
            pass

    busy = growth.Busy(Working())
    busy.map([])
    hands.now += 2
    busy.map([])
    assert busy.seconds == 10


def test_models_per_stored_model():
    runs = {n: {"models_stored": n, "model_bytes": 10, "state_bytes": 7 + 10 * n} for n in (2, 4, 9)}
    assert _slope(runs, "state_bytes") == pytest.approx(1.0)


def test_shared_tensors_count_once():
    one, two = torch.zeros(4), torch.zeros(2)
    assert distinct_bytes({"a": one, "b": [one, two], "c": (one.view(2, 2),)}) == 4 * (4 + 2)


def test_output(tmp_path, capsys, forked):
    path = tmp_path / "speed.json"
    assert main(["bench", *SMALL, "rounds=30", "--repeat", "1", "--json", str(path)]) == 0
    assert "phases of a round: fedavg · mlp · synthetic · serial" in " ".join(capsys.readouterr().out.split())
    record = json.loads(path.read_text())
    assert {"fnll", "commit", "measured", "versions", "host", "suites"} == set(record)
    assert main(["bench", "--read", str(path)]) == 0
    table = capsys.readouterr().out
    assert table.startswith("| suite | what | measured | wanted | |")
    assert "| phases | round / bare loop |" in table


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--suite", "trian"], "train"),
        (["--repeat", "0"], "--repeat"),
        (["--read", "nothing.json"], "nothing.json"),
        (["--json", "/"], "--json /"),
        (["modle=mlp"], "model"),
        ([*SMALL, "rounds=1"], "rounds"),
        (["--suite", "lid", "rounds=3"], "lid"),
    ],
)
def test_mistakes(words, told, capsys, forked):
    assert main(["bench", *words]) == 2
    assert told in capsys.readouterr().err
