"""For each check a method that breaks exactly that promise, and is caught."""

import gc
import inspect
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from fnll.cli.check import promises
from fnll.lengths import Length
from fnll.methods.fedavg import FedAvg
from fnll.scenario.scenario import Scenario, Truth
from fnll.testing import CHECKS, Subject, TinyWorld, run_check, subject_of
from fnll.types import State, Update
from fnll.weights import Weights, mean, scale


@dataclass(frozen=True, kw_only=True)
class HiddenDefault(FedAvg):
    secret: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Counting(FedAvg):
    """Counts its rounds on itself."""

    def round(self, state, fed):
        object.__setattr__(self, "rounds", getattr(self, "rounds", 0) + 1)
        return super().round(state, fed)


@dataclass(frozen=True, kw_only=True)
class GlobalInit(FedAvg):
    """Starts from the global generator."""

    def init(self, fed, weights=None):
        return State({name: torch.randn_like(value) for name, value in super().init(fed).weights.items()})


@dataclass(frozen=True, kw_only=True)
class GlobalNoise(FedAvg):
    """Disturbs the aggregate with the global generator."""

    def aggregate(self, state, updates, fed):
        return {name: value + 1e-3 * torch.rand(()) for name, value in super().aggregate(state, updates, fed).items()}


LAST: list[Weights] = []


@dataclass(frozen=True, kw_only=True)
class PassesOn(FedAvg):
    """Each client starts from what the client computed before it, as FedRN's released code does."""

    def round(self, state, fed):
        LAST.clear()
        return super().round(state, fed)

    def train(self, client, weights):
        update = yield from super().train(client, weights=LAST[-1] if LAST else weights)
        LAST.append(update.weights)
        return update


AT_WORK: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Crowded(FedAvg):
    """Its jobs tell how many of them are at work: one under serial, a cohort under cohort."""

    def train(self, client, weights):
        AT_WORK.append(client.id)
        update = yield from super().train(client, weights=weights)
        crowd = len(AT_WORK)
        AT_WORK.remove(client.id)
        return replace(update, report={"crowd": float(crowd)})


@dataclass(frozen=True, kw_only=True)
class LocalJob(FedAvg):
    """Its job is a closure, which no process can receive."""

    def round(self, state, fed):
        def train(client, weights):
            return FedAvg.train(self, client, weights=weights)

        return State(mean([u.weights for u in fed.map(train, fed.sample(self.cohort_size), weights=state.weights)]))


@dataclass(frozen=True, kw_only=True)
class InPlace(FedAvg):
    """Writes into the message."""

    def train(self, client, weights):
        update = yield from super().train(client, weights=weights)
        next(iter(weights.values())).add_(1e-3)
        return update


@dataclass(frozen=True)
class Unwritable(State):
    thing: object = field(default=print)


@dataclass(frozen=True, kw_only=True)
class BadState(FedAvg):
    """Keeps a function in its state."""

    def init(self, fed, weights=None):
        return Unwritable(super().init(fed).weights)


@dataclass(frozen=True, kw_only=True)
class ForgetsOnResume(FedAvg):
    """Remembers the last weights outside of its state."""

    memory: ClassVar[dict] = {}

    def init(self, fed, weights=None):
        state = super().init(fed, weights)
        self.memory.clear()
        return state

    def round(self, state, fed):
        new = super().round(state, fed)
        for old in self.memory.get(fed.t - 1, ()):
            new = State(mean([new.weights, old], [0.9, 0.1]))
        self.memory.clear()
        self.memory[fed.t] = [new.weights]
        return new


@dataclass(frozen=True, kw_only=True)
class ForgetsLate(ForgetsOnResume):
    """Needs what it remembers in its last rounds only."""

    def round(self, state, fed):
        if fed.t < 5:
            self.memory.clear()
        return super().round(state, fed)


@dataclass(frozen=True, kw_only=True)
class Cheater(FedAvg):
    """Finds whatever truths are in memory (other tests may have left some) and trains on them in the first round."""

    def train(self, client, weights):
        if client.t > 0:
            return super().train(client, weights=weights)
        index = client.data.index
        found = [thing.labels for thing in gc.get_objects() if type(thing) is Truth]
        labels = sum(labels[index] for labels in found if len(labels) > index.max()) % client.data.num_classes
        return super().train(client.with_labels(labels), weights=weights)


@dataclass(frozen=True, kw_only=True)
class Peeper(FedAvg):
    """Reads another client's labels off the stack of whoever called it."""

    def train(self, client, weights):
        update = yield from super().train(client, weights=weights)
        frames = (level.frame for level in inspect.stack(0))
        scenario = next(value for frame in frames for value in frame.f_locals.values() if type(value) is Scenario)
        return replace(update, report={"peek": float((scenario.labels * torch.arange(len(scenario.labels))).sum())})


@dataclass(frozen=True, kw_only=True)
class WrongShape(FedAvg):
    def model(self, state):
        return nn.Sequential(super().model(state), nn.Linear(4, 7))


@dataclass(frozen=True, kw_only=True)
class Exploding(FedAvg):
    def aggregate(self, state, updates, fed):
        return scale(super().aggregate(state, updates, fed), float("inf"))


class Guess(FedAvg):
    """Breaks on one kind of client."""

    def broken(self, client) -> bool:
        raise NotImplementedError

    def train(self, client, weights):
        if self.broken(client):
            raise ZeroDivisionError("division by zero")
        return super().train(client, weights=weights)


@dataclass(frozen=True, kw_only=True)
class NoOneSample(Guess):
    def broken(self, client):
        return len(client) == 1


@dataclass(frozen=True, kw_only=True)
class NoSingleClass(Guess):
    def broken(self, client):
        return len(client.data.y.unique()) == 1


@dataclass(frozen=True, kw_only=True)
class AsksTheEmpty(FedAvg):
    def round(self, state, fed):
        fed.map(self.probe, range(fed.num_clients))
        return super().round(state, fed)

    def probe(self, client):
        return Update(report={"top": float(client.data.y.max())})


@dataclass(frozen=True, kw_only=True)
class NeedsTwo(FedAvg):
    def aggregate(self, state, updates, fed):
        first, second, *rest = updates
        return super().aggregate(state, [first, second, *rest], fed)


@dataclass(frozen=True, kw_only=True)
class NeedsAbsent(FedAvg):
    """Compares the cohort with those who stayed away."""

    def round(self, state, fed):
        cohort = fed.sample(self.cohort_size)
        fed.sample(1, among=set(range(fed.num_clients)) - set(cohort), purpose="control")
        updates = fed.map(self.train, cohort, weights=state.weights)
        return replace(state, weights=self.aggregate(state, updates, fed))


@dataclass(frozen=True, kw_only=True)
class Detects(FedAvg):
    """Divides by the number of clients it calls noisy: those whose share of the most frequent label is odd."""

    quiet: ClassVar[bool]

    def round(self, state, fed):
        shares = [u.report["share"] for u in fed.map(self.probe, fed.inhabited)]
        flagged = [share != 3 / 12 for share in shares]
        _ = 1 / (len(flagged) - sum(flagged) if self.quiet else sum(flagged))
        return super().round(state, fed)

    def probe(self, client):
        return Update(report={"share": float(client.class_counts().max()) / len(client)})


@dataclass(frozen=True, kw_only=True)
class NeedsNoisy(Detects):
    quiet: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class NeedsClean(Detects):
    quiet: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class FalseLaw(FedAvg):
    limit_laws: ClassVar[dict] = {"strength 0 is FedAvg": {"strength": 0.0}}
    strength: float

    def aggregate(self, state, updates, fed):
        return scale(super().aggregate(state, updates, fed), 1 - self.strength - 1e-6)


@dataclass(frozen=True, kw_only=True)
class Lazy(FedAvg):
    """Sends back what it got."""

    def train(self, client, weights):
        return Update(dict(weights))


@dataclass(frozen=True, kw_only=True)
class NeverStarts(FedAvg):
    """Ends its warm-up after a number of rounds that suits long runs only."""

    short_run: ClassVar[dict] = {"warmup": 3}
    warmup: Annotated[int, Length()]

    def aggregate(self, state, updates, fed):
        new = super().aggregate(state, updates, fed)
        return new if fed.t < self.warmup else scale(new, 0.9)


@dataclass(frozen=True, kw_only=True)
class NeverEnds(NeverStarts):
    """The same with a warm-up that is not FedAvg, so only its length gives it away."""

    def aggregate(self, state, updates, fed):
        return scale(super().aggregate(state, updates, fed), 0.99)


@dataclass(frozen=True, kw_only=True)
class SaysSo(NeverStarts):
    def needs(self, world):
        return (self.warmup + 1) * self.cohort_size


BROKEN = {
    "config_matches_fields": HiddenDefault,
    "method_frozen": Counting,
    "init_repeatable": GlobalInit,
    "round_repeatable": GlobalNoise,
    "order_free": PassesOn,
    "executors_agree": Crowded,
    "crosses_processes": LocalJob,
    "jobs_pure": InPlace,
    "state_roundtrips": BadState,
    "resume_exact": ForgetsOnResume,
    "blind_to_truth": Cheater,
    "blind_to_strangers": Peeper,
    "model_gives_logits": WrongShape,
    "finite": Exploding,
    "no_noisy_clients": NeedsNoisy,
    "all_noisy_clients": NeedsClean,
    "single_class_client": NoSingleClass,
    "one_sample_client": NoOneSample,
    "empty_client": AsksTheEmpty,
    "cohort_of_one": NeedsTwo,
    "cohort_of_all": NeedsAbsent,
    "limit_laws": FalseLaw,
    "itself_at_any_budget": NeverStarts,
    "learns": Lazy,
}


def subject(cls: type) -> Subject:
    node = {"_target_": f"{__name__}.{cls.__name__}", "_partial_": True}
    if cls is FalseLaw:
        node["strength"] = 0.5
    if issubclass(cls, NeverStarts):
        node["warmup"] = 12
    return Subject(cls.__name__, OmegaConf.create(node))


def test_every_check_has_a_method_that_breaks_it():
    assert BROKEN.keys() == CHECKS.keys()


@pytest.mark.parametrize("name", BROKEN)
def test_the_check_bites(name):
    result = run_check(subject(BROKEN[name]), CHECKS[name])
    assert result.outcome == "failed", f"{BROKEN[name].__name__} passed {name}"
    assert result.detail


def test_an_excuse_is_shown_with_its_reason():
    @dataclass(frozen=True, kw_only=True)
    class Excused(Lazy):
        excused: ClassVar[dict] = {"learns": "it is a joke"}

    globals()["Excused"] = Excused
    result = run_check(subject(Excused), CHECKS["learns"])
    assert (result.outcome, result.detail) == ("excused", "it is a joke")


def test_a_false_limit_law_says_how_far_it_is_off():
    detail = run_check(subject(FalseLaw), CHECKS["limit_laws"]).detail
    assert "strength 0 is FedAvg: this should be FedAvg, but after 8 rounds" in detail
    assert "away" in detail


def test_a_late_round_that_needs_what_no_snapshot_holds_is_caught():
    assert run_check(subject(ForgetsLate), CHECKS["resume_exact"]).detail.startswith("resumed after round")


def test_a_warm_up_that_covers_the_run_is_caught_by_its_length():
    details = [run_check(subject(cls), CHECKS["itself_at_any_budget"]).detail for cls in (NeverStarts, NeverEnds)]
    assert details == [
        "with rounds=2 and the settings of its YAML it is FedAvg from the first round to the last",
        "with rounds=8, method.warmup covers the whole run: an endless one gives the same model",
    ]


def test_a_method_that_declines_a_short_run_or_has_shares_is_itself():
    assert run_check(subject(SaysSo), CHECKS["itself_at_any_budget"]).outcome == "passed"
    node = {"_target_": f"{__name__}.NeverEnds", "_partial_": True, "warmup": "20%"}
    shares = Subject("shares", OmegaConf.create(node))
    assert run_check(shares, CHECKS["itself_at_any_budget"]).outcome == "passed"


def test_the_methods_that_are_checked_are_those_of_this_file():
    assert type(subject(Lazy).method(TinyWorld())) is Lazy


def test_a_method_that_states_no_limit_law_gets_no_tick() -> None:
    result = run_check(subject(Lazy), CHECKS["limit_laws"])
    assert (result.outcome, "limit_laws" in result.detail) == ("unstated", True)


def test_a_limit_law_is_about_the_model_that_is_judged() -> None:
    assert run_check(subject_of("coteaching"), CHECKS["limit_laws"]).outcome == "passed"


def test_help_lists_the_checks_that_there_are() -> None:
    assert promises() == {name: check.promise for name, check in CHECKS.items()}
