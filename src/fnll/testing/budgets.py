"""Whether a method is itself in a short run, too: under the settings of its YAML, not under `short_run`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from fnll.errors import UserError
from fnll.federation import Method
from fnll.harness.budget import too_small
from fnll.lengths import marked
from fnll.methods.fedavg import FedAvg
from fnll.testing.equality import same
from fnll.testing.registry import check, fail
from fnll.testing.subject import Subject
from fnll.testing.worlds import ROUNDS, TinyWorld, play
from fnll.weights import Weights

BUDGETS = (2, 3, ROUNDS)
COHORT = 3
ENDLESS = 10**9


@check(
    "At any budget it is itself or declines: no warm-up, stage or ramp silently covers the whole run.",
    "A row of a table would show another method under this one's name, such as FedAvg for one that never starts.",
    "Write lengths as shares (`warmup: 20%`), mark their fields with Length(), and let needs(world) say the fewest "
    "client updates in which every stage has its turn.",
)
def itself_at_any_budget(subject: Subject) -> None:
    world = TinyWorld()
    is_fedavg = same(subject.plain_run[-1].state.weights, _fedavg(ROUNDS))
    for rounds in BUDGETS:
        if too_small(lambda r: subject.as_typed(world, COHORT, r), rounds, COHORT, world.public):
            continue
        ours = _weights(subject.as_typed(world, COHORT, rounds), world, rounds)
        if not is_fedavg and same(ours, _fedavg(rounds)):
            fail(f"with rounds={rounds} and the settings of its YAML it is FedAvg from the first round to the last")
        for name in _endless_alike(subject, world, rounds, ours) if rounds == ROUNDS else ():
            fail(f"with rounds={rounds}, method.{name} covers the whole run: an endless one gives the same model")


def _endless_alike(subject: Subject, world: TinyWorld, rounds: int, ours: Weights) -> Iterator[str]:
    """The lengths that could as well be endless."""
    method = subject.as_typed(world, COHORT, rounds)
    for name in marked(type(method)):
        if not getattr(method, name):  # switched off, or none
            continue
        try:
            endless = _weights(subject.as_typed(world, COHORT, rounds, **{name: ENDLESS}), world, rounds)
        except UserError:  # refused, so not silent
            continue
        if same(ours, endless):
            yield name


@cache  # the same for every method that is checked
def _fedavg(rounds: int) -> Weights:
    world = TinyWorld()
    return _weights(FedAvg(**world.shared(COHORT)), world, rounds)


def _weights(method: Method, world: TinyWorld, rounds: int) -> Weights:
    return dict(play(method, world, rounds=rounds, cohort=COHORT)[-1].state.weights)
