"""What one participation costs: models down and up, passes over the client's data (FedRN, table 10).

Counted, not timed, in a round after the warm-up. A forward pass is every sample of the client once through the network,
a backward pass every sample once from its loss into the head (also where the body is frozen). Methods that select train
on fewer samples, so their numbers lie below the paper's formulas, which count all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from fnll.bench.result import Claim, SuiteResult
from fnll.bench.subjects import local_of, run_of
from fnll.errors import UserError
from fnll.executors.serial import Serial
from fnll.federation import Totals, federate
from fnll.harness.prepare import Run
from fnll.models.network import Network
from fnll.published import Record, table
from fnll.types import Call, Update
from fnll.weights import nbytes

TABLE = "fedrn_table10"
WORLD = (
    "dataset=synthetic", "dataset.samples=400", "dataset.test_samples=10", "dataset.size=8", "dataset.channels=1",
    "model=small_cnn", "num_clients=8", "fraction=0.5", "noise=ramp", "noise.high=0.4", "executor=serial",
)  # fmt: skip
WARMUP = 2  # rounds, for methods that have one
AUGMENTATIONS = 2.0  # m: of DivideMix, as in its paper
ROUND = 4  # the round that is counted: every phase has begun by then


@dataclass
class Counts:
    """Samples that went through networks, and the work they belong to."""

    forward: int = 0
    backward: int = 0
    samples: int = 0  # of the clients that sent a model, each time they did
    heads: WeakSet[nn.Module] = field(default_factory=WeakSet)

    def clear(self) -> None:
        """Start again."""
        self.forward = self.backward = self.samples = 0


@dataclass(frozen=True)
class Counted:
    """An executor that notes who took part."""

    inner: Serial
    counts: Counts
    exact = True

    def map(self, calls: Sequence[Call]) -> list[Update]:
        updates = self.inner.map(calls)
        sizes = self.inner.scenario.sizes
        self.counts.samples += sum(sizes[u.client] for u in updates if u.weights is not None)
        return updates

    def close(self) -> None:
        """Nothing to release."""


def measure(words: Sequence[str], repeat: int) -> SuiteResult:
    """Count for every method of the paper's table, in the world of `words` laid over a small one."""
    claims, facts = [], []
    for row in table(TABLE).rows:
        records = {r.column: r for r in table(TABLE).records if r.row == row}
        method = str(records["up"].settings["method"])
        run = run_of([*WORLD, f"method={method}", *_warmup(method), *words])
        found, letters = count(run), _letters(run)
        for column, record in records.items():
            published = value(record, letters)
            told = "" if published is None else f", published {_printed(record)} = {published:g}"
            claims.append(
                Claim(f"{method}: {column}{told}", found[column], unit="M" if column in ("down", "up") else "")
            )
            facts.append({"method": method, "cost": column, "measured": found[column], "published": published})
    settings = {"E": local_of(run).epochs, "round": ROUND, "world": [*WORLD, *words]}
    return SuiteResult("passes", tuple(words), {}, tuple(claims), {"costs": facts, **settings})


def count(run: Run) -> dict[str, float]:
    """The cost of one participation in round `ROUND`: models down and up, passes forward and backward."""
    counts = Counts()
    executor = Counted(Serial(run.scenario), counts)
    before = Totals()
    with counting(counts):
        for number, (snapshot, _) in enumerate(
            federate(run.method, executor, run.world, budget=run.budget, seed=run.cfg.seed), start=1
        ):
            if number == ROUND:
                break
            counts.clear()
            before = snapshot.totals
        else:
            raise UserError(f"rounds={run.cfg.rounds} end before round {ROUND}, which is counted; type more rounds")
    updates = snapshot.totals.client_updates - before.client_updates
    if not counts.forward or not counts.samples:
        raise UserError(f"nothing of model={run.request.choices['model']} was counted; only Network's own passes are")
    model = updates * nbytes(run.net.fresh(0))
    return {
        "down": (snapshot.totals.down_bytes - before.down_bytes) / model,
        "up": (snapshot.totals.up_bytes - before.up_bytes) / model,
        "forward": counts.forward / counts.samples,
        "backward": counts.backward / counts.samples,
    }


@contextmanager
def counting(counts: Counts) -> Iterator[None]:
    """Count what goes through any network of this process inside the block."""
    plain = {"features": Network.features, "forward": Network.forward}

    def seen(name: str) -> Any:
        def through(self: Network, x: Tensor) -> Tensor:
            counts.heads.add(self.head)
            counts.forward += len(x)
            return plain[name](self, x)

        return through

    def propagated(module: nn.Module, _: Any, logits: Any) -> None:
        if module in counts.heads and isinstance(logits, Tensor) and logits.requires_grad:
            logits.register_hook(lambda gradient: setattr(counts, "backward", counts.backward + len(gradient)))

    handle = torch.nn.modules.module.register_module_forward_hook(propagated)
    try:
        for name in plain:
            setattr(Network, name, seen(name))
        yield
    finally:
        for name, original in plain.items():
            setattr(Network, name, original)
        handle.remove()


def value(record: Record, letters: dict[str, float]) -> float | None:
    """A printed formula for given E, k and m; None if a letter has no value here."""
    if record.value is not None:
        return record.value
    terms = record.formula.replace("(", " ( ").replace(")", " ) ").replace("*", " * ").replace("+", " + ").split()
    if any(word.isalpha() and word not in letters for word in terms):
        return None
    return _sum([str(letters.get(word, word)) for word in terms])


def _sum(terms: list[str]) -> float:
    """Sums and products with brackets: all that the table's formulas are made of."""
    if "(" in terms:
        start, stop = terms.index("("), terms.index(")")
        return _sum([*terms[:start], str(_sum(terms[start + 1 : stop])), *terms[stop + 1 :]])
    products = " ".join(terms).split(" + ")
    return sum(math.prod(float(factor) for factor in product.split(" * ")) for product in products)


def _letters(run: Run) -> dict[str, float]:
    found = {"E": float(local_of(run).epochs), "m": AUGMENTATIONS}
    return found | {letter: float(run.cfg.method[letter]) for letter in ("k",) if letter in run.cfg.method}


def _warmup(method: str) -> list[str]:
    """Rounds of warm-up as few as possible, where a method has any."""
    known = run_of([*WORLD, f"method={method}"]).cfg.method
    return [f"method.warmup={WARMUP}"] if "warmup" in known else []


def _printed(record: Record) -> str:
    return record.formula or f"{record.value:g}"
