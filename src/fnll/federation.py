"""One federated round, top to bottom. Start reading at `federate`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fnll.seeding import derive
from fnll.types import Call, Each, Job, Memory, State, Update, job_name
from fnll.weights import Weights, nbytes

log = logging.getLogger(__name__)

IDLE_ROUNDS = 1000  # rounds in a row that may upload no weights before the run is called stuck


def federate(
    method: Method,
    executor: Executor,
    world: World,
    *,
    budget: int,
    seed: int,
    resume: Snapshot | None = None,
    whole_round: int | None = None,
) -> Iterator[tuple[Snapshot, Ledger]]:
    """Run `method` until its clients have sent `budget` updates; yield each round what an experimenter may know.

    With `whole_round`, a round that asks for more clients than it may choose from counts as so many updates: the
    budget is then one of rounds.
    """
    if resume is None:
        clients: Clients = {}
        ledger = Ledger()
        state = method.init(Federation(world, executor, budget=budget, seed=seed, t=-1, clients=clients, ledger=ledger))
        resume = Snapshot(0, state, clients, ledger.totals)
    now, idle = resume, 0
    while now.totals.spent < budget:
        clients, ledger = dict(now.clients), Ledger()  # this round's own: a failed round changes nothing
        fed = Federation(
            world, executor, budget=budget, seed=seed, t=now.t, clients=clients, ledger=ledger, before=now.totals
        )
        state = method.round(now.state, fed)
        if whole_round is not None and ledger.short:
            ledger.totals += Totals(absent=max(0, whole_round - ledger.totals.client_updates))
        now = Snapshot(now.t + 1, state, clients, now.totals + ledger.totals)
        idle = 0 if ledger.totals.client_updates else idle + 1
        if idle > IDLE_ROUNDS:
            raise RuntimeError(f"{idle} rounds in a row uploaded no weights; the budget of client updates never ends")
        yield now, ledger


@dataclass(frozen=True)
class World:
    """What is public about a scenario: enough to address clients and shape networks, nothing about their data."""

    sizes: tuple[int, ...]  # sample counts are public, as FedAvg's weighting assumes
    num_classes: int
    input_shape: tuple[int, int, int]

    @cached_property
    def inhabited(self) -> NDArray[np.int64]:
        """The clients that hold at least one sample, in order; found once, since there may be a hundred thousand."""
        return np.flatnonzero(np.asarray(self.sizes) > 0)


@dataclass(frozen=True)
class Kept:
    """What stays with one client between rounds."""

    memory: Memory = field(default_factory=dict)
    labels: Tensor | None = None  # corrected labels; None while they are the observed ones


Clients = dict[int, Kept]


class Totals(NamedTuple):
    """The cost of a run so far."""

    contacts: int = 0  # any exchange with a client
    client_updates: int = 0  # exchanges that brought weights back: the currency of the budget
    up_bytes: int = 0
    down_bytes: int = 0
    absent: int = 0  # updates that short rounds were charged with beside those they had, if rounds are counted

    @property
    def spent(self) -> int:
        """How much of the budget is gone."""
        return self.client_updates + self.absent

    def costs(self) -> dict[str, int]:
        """What was really sent, by name."""
        return {name: value for name, value in self._asdict().items() if name != "absent"}

    def __add__(self, other: Totals) -> Totals:  # type: ignore[override]
        return Totals(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Snapshot(NamedTuple):
    """Everything a run needs to go on: this *is* the checkpoint."""

    t: int
    state: State
    clients: Clients
    totals: Totals


class Trace(NamedTuple):
    """What one job told the evaluator."""

    client: int
    job: str
    values: Mapping[str, Tensor]
    labels: Tensor | None


@dataclass
class Ledger:
    """One round's costs, and what its jobs and its server told the evaluator."""

    totals: Totals = field(default_factory=Totals)
    traces: list[Trace] = field(default_factory=list)
    records: dict[str, Any] = field(default_factory=dict)
    short: bool = False  # more clients were asked for than there were to choose from

    def add(self, call: Call, update: Update) -> None:
        up = nbytes(update.weights) + nbytes(update.report)
        self.totals += Totals(1, int(update.weights is not None), up, nbytes(call.message))
        if update.trace or update.labels is not None:
            self.traces.append(Trace(call.client, call.name, update.trace, update.labels))


class Executor(Protocol):
    """Does clients' jobs. `exact` promises results bit-identical to `Serial` on the same device type."""

    exact: bool

    def map(self, calls: Sequence[Call]) -> list[Update]: ...  # same length and order as `calls`

    def close(self) -> None: ...


class Method(Protocol):
    """A federated learning method: three functions. `Choosy` and `Personal` have one more each."""

    def init(self, fed: Federation, weights: Weights | None = None) -> State: ...

    def round(self, state: Any, fed: Federation) -> State: ...

    def model(self, state: Any) -> nn.Module: ...  # images to logits; judged by the harness


@runtime_checkable
class Choosy(Protocol):
    """A method that may decline a scenario before anything is trained."""

    def decline(self, world: World) -> str | None: ...  # the reason, or None to take part


@runtime_checkable
class Personal(Protocol):
    """A method whose clients keep models of their own, which the harness then judges beside the global one."""

    def models(self, state: Any) -> Iterable[tuple[int, State]]: ...  # client, and the state whose model is its own


class Federation:
    """A method's only window on its clients during round `t`."""

    def __init__(
        self,
        world: World,
        executor: Executor,
        *,
        budget: int,
        seed: int,
        t: int,
        clients: Clients | None = None,
        ledger: Ledger | None = None,
        before: Totals = Totals(),  # noqa: B008  (a tuple of zeros)
    ) -> None:
        self.sizes = world.sizes
        self._inhabited = world.inhabited
        self.num_classes = world.num_classes
        self.input_shape = world.input_shape
        self.budget = budget
        self.t = t
        self._executor = executor
        self._clients: Clients = {} if clients is None else clients  # this round's copy: `map` writes into it
        self._ledger = Ledger() if ledger is None else ledger
        self._before = before  # what earlier rounds have cost
        self._seed = seed
        self._clock = t  # never restarts, also inside `sub`: randomness is addressed by it
        self._prefix = ""  # of an inner method's memories
        self._uses: Counter[tuple[str, int]] = Counter()  # how often a job was sent to a client in this round
        self._asked: set[str] = set()  # purposes that were sampled for in this round

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    @property
    def spent(self) -> int:
        """How much of `budget` is gone: the client updates sent so far, unless rounds are counted."""
        return self._before.spent + self._ledger.totals.client_updates

    @property
    def inhabited(self) -> list[int]:
        """The clients that hold at least one sample."""
        return cast(list[int], self._inhabited.tolist())

    def rng(self, *path: int | str) -> np.random.Generator:
        """Server-side randomness of this round. What must outlive the round belongs in State."""
        return np.random.default_rng(self.seed(*path))

    def seed(self, *path: int | str) -> int:
        """A seed of the server's in this round, for libraries that want a number."""
        return derive(self._seed, "server", self._clock, *path)

    def sample(
        self, n: int, among: Iterable[int] | None = None, p: Sequence[float] | None = None, purpose: str = "train"
    ) -> list[int]:
        """`n` distinct clients (fewer if there are fewer), never an empty one; `p` weighs every client in the world.

        The same question in the same round has the same answer for every method; asking it twice is an error, since it
        would silently give the same cohort.
        """
        if purpose in self._asked:
            raise ValueError(f"round {self.t}: clients for {purpose!r} were sampled already; name another purpose")
        self._asked.add(purpose)
        pool = self._inhabited
        if among is not None:
            pool = np.array([k for k in sorted(among) if self.sizes[k] > 0], dtype=np.int64)
        if not len(pool):
            raise ValueError(f"round {self.t}: asked to sample from no clients; the method's selection came out empty")
        self._ledger.short |= len(pool) < n
        weights = None
        if p is not None:
            weights = np.asarray(p, dtype=float)[pool]
            weights = weights / weights.sum()
        rng = np.random.default_rng(derive(self._seed, "server", self._clock, "sample", purpose))
        return sorted(rng.choice(pool, min(n, len(pool)), replace=False, p=weights).tolist())

    def map(self, job: Job, clients: Sequence[int], **message: object) -> list[Update]:
        """Run `job(client, **message)` on each client; updates come back in the order of `clients`."""
        if len(set(clients)) < len(clients):
            raise ValueError(f"round {self.t}: {job_name(job)} was sent twice to one client; map it twice instead")
        calls = [self._call(job, k, {name: _for(i, v) for name, v in message.items()}) for i, k in enumerate(clients)]
        return [self._receive(call, update) for call, update in zip(calls, self._executor.map(calls), strict=True)]

    def record(self, **facts: object) -> None:
        """Tell the evaluator something about this round (write-only); see docs/metrics.md for the names it scores."""
        self._ledger.records.update(facts)

    def sub(self, name: str, start: int) -> Federation:
        """The same clients as an inner method sees them: its own memories, and rounds counted from `start`."""
        inner = copy(self)  # shares clients, ledger and what was asked for with this one
        inner.t, inner._prefix = self.t - start, f"{self._prefix}{name}/"
        return inner

    def _call(self, job: Job, k: int, message: Mapping[str, Any]) -> Call:
        kept = self._clients.get(k, Kept())
        name = job_name(job)
        use = self._uses[name, k]
        self._uses[name, k] += 1
        seed = derive(self._seed, "client", self._clock, k, name, use)
        start = len(self._prefix)
        memory = {key[start:]: value for key, value in kept.memory.items() if key.startswith(self._prefix)}
        return Call(job, k, self.t, message, memory, kept.labels, seed)

    def _receive(self, call: Call, update: Update) -> Update:
        self._ledger.add(call, update)
        if update.memory or update.labels is not None:
            kept = self._clients.get(call.client, Kept())
            fresh = {f"{self._prefix}{key}": value for key, value in update.memory.items()}
            labels = kept.labels if update.labels is None else update.labels
            self._clients[call.client] = Kept({**kept.memory, **fresh}, labels)
        return replace(update, memory={}, trace={}, labels=None)  # none of these is the server's to see


def _for(i: int, value: object) -> object:
    return value.values[i] if isinstance(value, Each) else value
