"""Methods from configs: inner methods and networks at every depth, and old forms refused by name."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
from omegaconf import OmegaConf

from fnll.errors import UserError
from fnll.federation import Method
from fnll.harness.making import as_method, completed, declined, inner_methods, privileges
from fnll.harness.prepare import complete, made
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedprox import FedProx
from fnll.models import mlp
from fnll.net import Net
from fnll.testing import TinyWorld, play, same, subject_of
from fnll.types import Update

WORLD = TinyWorld()


@dataclass(frozen=True, kw_only=True)
class Wrapper(FedAvg):
    """Lets another method do all the work, from its second round on."""

    privileges: ClassVar[tuple[str, ...]] = ("a wrapper's view",)
    inside: Method | None

    def round(self, state, fed):
        if fed.t == 0 or self.inside is None:
            return super().round(state, fed)
        inner = self.inside.init(fed.sub("inside", start=1), state.weights)
        return replace(state, weights=self.inside.round(inner, fed.sub("inside", start=1)).weights)


@dataclass(frozen=True, kw_only=True)
class Privileged(FedProx):
    privileges: ClassVar[tuple[str, ...]] = ("the true noise rate",)

    def decline(self, world):
        return "it wants ten classes" if world.num_classes < 10 else None


@dataclass(frozen=True, kw_only=True)
class Assisted(FedAvg):
    """Has a second network of another kind."""

    helper: Net


def make(factory):
    return completed(factory, WORLD.shared(), "method", complete)


def nested(depth, innermost):
    factory = innermost
    for _ in range(depth):
        factory = partial(Wrapper, inside=factory)
    return factory


PROX = partial(FedProx, mu=0.1, form="norm")


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_methods_are_completed_at_every_depth(depth):
    method = make(nested(depth, PROX))
    assert [name for name, _ in inner_methods(method)] == [".".join(["inside"] * n) for n in range(1, depth + 1)]
    innermost = [method, *(inner for _, inner in inner_methods(method))][-1]
    assert isinstance(innermost, FedProx)
    assert innermost.cohort_size == 3
    play(method, WORLD, rounds=3)


def test_a_mistake_two_deep_is_found_at_the_start():
    with pytest.raises(UserError, match=r"method\.mu must be at least 0, got -1"):
        make(nested(2, partial(FedProx, mu=-1, form="norm")))
    with pytest.raises(UserError, match=r"method\.inside\.inside has no setting called 'nu'; did you mean mu"):
        make(nested(2, partial(FedProx, nu=1, form="norm")))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fedprox", r"method\.inside is a method, not the value 'fedprox'; type method@method\.inside=NAME"),
        (3, r"method\.inside is a method, not the value 3"),
        ({"a": 1}, r"method\.inside is a method, not the value"),
        (partial(mlp, hidden=(3,)), r"method\.inside: fnll\.models\.\S+mlp is neither a method \(it has no init"),
        (partial(dict, a=1), r"method\.inside: builtins\.dict is neither"),
    ],
)
def test_what_is_no_method_is_refused_at_the_start(value, message):
    with pytest.raises(UserError, match=message):
        make(partial(Wrapper, inside=value))


def test_a_second_network_is_made_for_the_same_images_and_classes():
    method = make(partial(Assisted, helper=partial(mlp, hidden=(3,))))
    assert isinstance(method.helper, Net)
    settings = dict(method.helper.settings)
    assert (settings["num_classes"], settings["hidden"]) == (4, (3,))
    assert settings["input_shape"] == WORLD.scenario.input_shape


def test_a_second_network_from_yaml():
    node = OmegaConf.create(
        {
            "_target_": f"{__name__}.Assisted",
            "_partial_": True,
            "helper": {"_target_": "fnll.models.mlp", "_partial_": True, "hidden": [5]},
        }
    )
    assert dict(make(made(node, "method")).helper.settings)["hidden"] == (5,)


def test_privileges_of_inner_methods_count():
    method = make(nested(1, partial(Privileged, mu=0.1, form="norm")))
    assert privileges(method) == ["a wrapper's view", "the true noise rate (Privileged inside)"]
    both = subject_of("fedcorr").method(WORLD, usual=None)
    assert privileges(both) == list(type(both).privileges)


def test_inner_methods_are_asked_whether_they_take_part():
    method = make(nested(2, partial(Privileged, mu=0.1, form="norm")))
    assert declined(method, WORLD.public) == "inside.inside: it wants ten classes"
    assert declined(make(nested(2, PROX)), WORLD.public) is None


@dataclass(frozen=True, kw_only=True)
class Skipping(FedProx):
    def skip(self, world):
        return "it wants ten classes" if world.num_classes < 10 else None


def test_what_a_method_of_01_called_skip_is_still_asked():
    method = make(nested(1, partial(Skipping, mu=0.1, form="norm")))
    with pytest.warns(FutureWarning, match=r"skip\(world\) is called Skipping.decline\(world\) since 0\.2"):
        assert declined(method, WORLD.public) == "inside: it wants ten classes"


class Prepares(FedAvg):
    def prepare(self, client, **message):
        return self.module(client, **message), client


class Finishes(FedAvg):
    def finish(self, module, client, weights):
        return Update(weights)


class Remembers(FedAvg):
    def remembered(self, client):
        return None


class TakesForUpdate(FedAvg):
    def train(self, client, **message):
        update = super().train(client, **message)
        return replace(update, report={"n": 1.0})


class OldAggregate(FedAvg):
    def aggregate(self, state, updates):
        return state.weights


class HandsOn(FedAvg):
    def train(self, client, **message):
        return super().train(client, **message)


class AddsTo(FedAvg):
    def train(self, client, **message):
        update = yield from super().train(client, **message)
        return replace(update, report={"n": 1.0})


class Nothing:
    def init(self):
        pass


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Prepares, r"Prepares overrides prepare, which nobody calls any more; since 0\.2 a job asks for its training"),
        (Finishes, r"Finishes overrides finish.*\n.*def train\(self, client, weights\)"),
        (Remembers, "Remembers overrides remembered"),
        (TakesForUpdate, r"TakesForUpdate\.train takes super\(\)\.train\(\.\.\.\) for an Update; since 0\.2"),
        (OldAggregate, r"OldAggregate\.aggregate takes the federation too: def aggregate\(self, state, updates, fed\)"),
    ],
)
def test_forms_of_before_are_refused_by_name(kind, message):
    with pytest.raises(UserError, match=message):
        as_method(kind(**WORLD.shared()))


@pytest.mark.parametrize("kind", [HandsOn, AddsTo])
def test_inheriting_a_job_properly_is_fine(kind):
    method = as_method(kind(**WORLD.shared()))
    assert same(play(method, WORLD)[-1].state.weights, play(FedAvg(**WORLD.shared()), WORLD)[-1].state.weights)


def test_what_lacks_a_part_of_a_method_is_told_so():
    with pytest.raises(UserError, match=r"Nothing is not a method: it has no round, model\. `fnll new method NAME`"):
        as_method(Nothing())


class Settled:
    def __init__(self, net, local, cohort_size):
        pass


def test_a_class_that_can_be_made_and_is_no_method_is_refused():
    with pytest.raises(UserError, match=r"Settled is not a method: it has no init, round, model"):
        make(partial(Settled))
