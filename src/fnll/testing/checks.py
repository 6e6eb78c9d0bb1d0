"""The rules of a fair comparison as small named checks; the tests hold a broken method for each of them."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from fnll.executors import Serial
from fnll.executors.vectorised import Vectorised
from fnll.federation import Federation, Snapshot, federate
from fnll.harness.checkpoint import Checkpoints
from fnll.methods.fedavg import FedAvg
from fnll.system.files import temporary_folder
from fnll.testing.equality import apart, canonical, same
from fnll.testing.executors import Backwards, Compared, Paranoid, Recording, Roundtrip
from fnll.testing.registry import check, fail, unstated
from fnll.testing.subject import SHARED, Subject
from fnll.testing.worlds import CLASSES, CLIENTS, TinyWorld, accuracy, play


@check(
    "Every setting in the YAML is a field of the class, and every field has its value in the YAML.",
    "A number could come from a place that no config shows and no run records.",
    "Give fields types but no defaults; write their values, with sources, into the YAML.",
)
def config_matches_fields(subject: Subject) -> None:
    method = subject.method(TinyWorld())
    fields = {f.name: f for f in dataclasses.fields(method) if f.name not in SHARED and f.init}  # type: ignore[arg-type]
    if odd := fields.keys() ^ subject.settings.keys():
        fail(f"in only one of the class and the YAML: {', '.join(sorted(odd))}")
    missing = (dataclasses.MISSING, dataclasses.MISSING)
    if hidden := [name for name, f in fields.items() if (f.default, f.default_factory) != missing]:
        fail(f"defaults in the class: {', '.join(hidden)}")


@check(
    "The method is a frozen dataclass that a run leaves exactly as it was.",
    "State hidden on the method is lost by a resume and differs between worker processes.",
    "Use @dataclass(frozen=True, kw_only=True); return what is learned in State, Update.memory or Update.report.",
)
def method_frozen(subject: Subject) -> None:
    world = TinyWorld()
    method = subject.method(world)
    if not (dataclasses.is_dataclass(method) and method.__dataclass_params__.frozen):
        fail("it is not a frozen dataclass")
    before = canonical(vars(method))
    play(method, world)
    if canonical(vars(method)) != before:
        fail("its attributes changed during the run")


@check(
    "The same seed gives the same initial state, and another seed another one.",
    "Methods would not start from the same weights, so differences would not be the methods'.",
    "Draw initial values from fed.seed(...) or fed.rng(...), never from the global generators.",
)
def init_repeatable(subject: Subject) -> None:
    world = TinyWorld()
    first, again, other = (_init(subject, world, seed) for seed in (0, 0, 1))
    if not same(first, again):
        fail("two starts with one seed differ")
    if same(first, other):
        fail("seeds 0 and 1 start alike")


def _init(subject: Subject, world: TinyWorld, seed: int) -> object:
    method = subject.method(world)
    fed = Federation(world.public, Serial(world.scenario), budget=24, seed=seed, t=-1)
    return method.init(fed)


@check(
    "The same seed gives the same run, bit for bit, whatever the global generators hold.",
    "Nobody could reproduce a number, and paired comparisons would not be paired.",
    "Use client.generator(...), client.seed, fed.rng(...); give scikit-learn a random_state from fed.seed(...).",
)
def round_repeatable(subject: Subject) -> None:
    world, first = TinyWorld(), subject.plain_run
    torch.manual_seed(2)
    if not same(first, play(subject.method(world), world)):
        fail("two runs with one seed differ")


@check(
    "The order in which clients are computed does not matter.",
    "Results would depend on the executor and on the number of workers.",
    "A job may use only its client, its message and its own randomness; combine updates in the order of the cohort.",
)
def order_free(subject: Subject) -> None:
    _equal_to_serial(subject, Backwards, "clients computed in reverse order give another run")


@check(
    "Jobs, messages and updates survive a process boundary.",
    "The method could not run in worker processes or on a cluster.",
    "Make jobs methods of the (importable) class; send tensors, numbers and containers of these.",
)
def crosses_processes(subject: Subject) -> None:
    _equal_to_serial(subject, Roundtrip, "a pickled copy of the calls gives another run")


@check(
    "What a job sends, remembers, traces and relabels is the same under every executor, up to rounding.",
    "A method would be another one under executor=vectorised: memories lost, samples chosen by another network.",
    "Let a job ask for its training with `yield Fit(module, client)` and use what it is sent back; a loss must not "
    "keep notes outside the module.",
)
def executors_agree(subject: Subject) -> None:
    world = TinyWorld()
    both = Compared(world.scenario, Vectorised(world.scenario))
    play(subject.method(world), world, executor=both)
    if both.differences:
        fail(both.differences[0])


def _equal_to_serial(subject: Subject, executor: type[Backwards] | type[Roundtrip], complaint: str) -> None:
    world = TinyWorld()
    if not same(subject.plain_run, play(subject.method(world), world, executor=executor(world.scenario))):
        fail(complaint)


@check(
    "A job changes nothing it was given, and doing it again gives the same result.",
    "A client could influence another one, or the server, behind the scenes.",
    "Copy before changing in place; return new values in the Update.",
)
def jobs_pure(subject: Subject) -> None:
    world = TinyWorld()
    play(subject.method(world), world, executor=Paranoid(world.scenario))


@check(
    "The state and the clients' memories can be written to a checkpoint and read back bit for bit.",
    "An interrupted run could not be continued.",
    "Keep tensors, Weights, numbers, strings and containers of these in State and memory.",
)
def state_roundtrips(subject: Subject) -> None:
    for snapshot in subject.plain_run:
        if not same(_through_disk(snapshot), snapshot):
            fail(f"the snapshot after round {snapshot.t} came back changed")


@check(
    "A run that is stopped after any round and resumed ends exactly as the uninterrupted one.",
    "Results would depend on when a machine was restarted.",
    "Whatever a later round needs must be in State or in a client's memory.",
)
def resume_exact(subject: Subject) -> None:
    world, whole = TinyWorld(), subject.plain_run
    # One round from each: what a round needs and the snapshot lacks is missed there. From the last to the first, so
    # that nothing outside of the method holds what the round before left.
    for snapshot, after in reversed(list(pairwise(whole))):
        resumed = federate(
            subject.method(world),
            Serial(world.scenario),
            world.public,
            budget=24,
            seed=0,
            resume=_through_disk(snapshot),
        )
        if not same(next(resumed)[0], after):
            fail(f"resumed after round {snapshot.t}, the run continues differently")


def _through_disk(snapshot: Snapshot) -> Snapshot:
    with temporary_folder() as folder:
        Checkpoints(folder, "check").save(snapshot, {})
        restored = Checkpoints(folder, "check").load()
    if restored is None:
        raise AssertionError("the checkpoint could not be read back")
    return restored.snapshot


@check(
    "With the same observed labels, the run is the same whatever the true labels are.",
    "A method that knows the truth beats every honest one.",
    "Use client.data only; nothing that leads to Truth or to the data set is yours to look at.",
)
def blind_to_truth(subject: Subject) -> None:
    runs = []
    for other in (False, True):
        world = TinyWorld(other_truth=other)
        runs.append(play(subject.method(world), world))
        truth = weakref.ref(world.truth)
        del world
        if truth() is not None:  # only one world's truth may exist at a time
            gc.collect()
    if not same(*runs):
        fail("other true labels behind the same observed ones give another run")


@check(
    "What a client computes does not depend on another client's data.",
    "Clients would share data, which federated learning rules out.",
    "A job may read client.data and its message; everything else must come as an Update through the server.",
)
def blind_to_strangers(subject: Subject) -> None:
    first = _first_map(subject, TinyWorld())
    called = [call.client for call, _ in first]
    stranger = called[0] if len(called) > 1 else next(k for k in range(CLIENTS) if k not in called)
    again = _first_map(subject, TinyWorld(altered=stranger))
    for (call, update), (_, changed) in zip(first, again, strict=True):
        if call.client != stranger and not same(update, changed):
            fail(f"client {call.client}'s update depends on client {stranger}'s labels")


def _first_map(subject: Subject, world: TinyWorld) -> list[tuple]:
    executor = Recording(world.scenario)
    next(federate(subject.method(world), executor, world.public, budget=24, seed=0))
    return executor.seen[0]


@check(
    "model(state) gives one row of finite logits per image, one column per class.",
    "The harness could not evaluate the method like the others.",
    "Return a module that maps normalised images to logits, in evaluation mode safe.",
)
def model_gives_logits(subject: Subject) -> None:
    world = TinyWorld()
    method, last = subject.method(world), subject.plain_run[-1]
    images = world.scenario.transform.plain(world.truth.test.take(torch.arange(7)))
    with torch.inference_mode():
        logits = method.model(last.state).eval()(images)
    if tuple(logits.shape) != (7, CLASSES):
        fail(f"seven images and {CLASSES} classes gave {tuple(logits.shape)}")
    if not torch.isfinite(logits).all():
        fail("the logits are not finite")


@check(
    "With the settings it names in `limit_laws`, the model that is judged is FedAvg's bit for bit.",
    "A method that does not reduce to FedAvg when its idea is switched off differs from it in something else too.",
    "Compare what is drawn, sent and averaged with fnll/methods/fedavg.py: FedAvg weighs by sample counts and sums in "
    "float64 (fnll.weights.mean). If another setting is the limit, or none is, say so in limit_laws.",
)
def limit_laws(subject: Subject) -> None:
    if not subject.limit_laws:
        unstated("no settings are named in limit_laws under which it is FedAvg")
    world, reference = TinyWorld("balanced"), _fedavg_on_balanced()
    for law, settings in subject.limit_laws.items():
        method = subject.method(world, **settings)
        ours = method.model(play(method, world)[-1].state).state_dict()  # of two networks, the one that is judged
        if not same(dict(ours), reference):
            fail(f"{law}: this should be FedAvg, but after 8 rounds {apart(ours, reference)}")


@cache  # the same for every method that is checked
def _fedavg_on_balanced() -> dict[str, Tensor]:
    world = TinyWorld("balanced")
    plain = FedAvg(**world.shared())
    return dict(plain.model(play(plain, world)[-1].state).state_dict())


@check(
    "It learns: on easy, clean data it ends far above chance.",
    "A method that runs without error may still train nothing.",
    "See that the trained weights come back from the job and reach the aggregate.",
)
def learns(subject: Subject) -> None:
    world = TinyWorld("clean")
    method = subject.method(world)
    reached = accuracy(method, play(method, world, rounds=16)[-1], world)
    if reached < 2 / CLASSES:
        fail(f"accuracy {reached:.0%} after 16 rounds; chance is {1 / CLASSES:.0%}")
