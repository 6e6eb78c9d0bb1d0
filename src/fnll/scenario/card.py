"""The facts about a scenario that one should look at before running anything on it.

This is for people and for the harness: a card is made from the truth, which no method may see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fnll.scenario.scenario import CLEAN, OBSERVED, UNKNOWN, Scenario, Truth

if TYPE_CHECKING:
    import pandas as pd

LID_NEIGHBOURS = 20  # FedCorr's k: LID looks at so many other samples of the client
MIXTURE_SIZE = 10  # two values for each of the five parameters of a two-component mixture of numbers
FAR_APART = 0.1  # nominal and realised noise; more for small clients, where chance does that
NAMED = 8  # clients that a warning names


@dataclass(frozen=True)
class Remark:
    """Something about some clients (or, with none, about the whole scenario) that may invalidate an experiment."""

    tag: str  # in a client's row of the table
    text: str
    about: str  # the same in words that do not depend on the draw, so that scenarios of several seeds share it
    clients: tuple[int, ...] = ()


@dataclass(frozen=True)
class Card:
    """Who has how many samples of which class, and how noisy they are."""

    name: str  # of the data set
    fingerprint: str
    origin: str  # differs from the fingerprint where an oracle or pooling was applied
    class_names: tuple[str, ...]
    observed: np.ndarray  # (n,) labels of the whole training set
    clean: np.ndarray | None  # (n,); None where nobody knows them
    shards: tuple[np.ndarray, ...]
    nominal: np.ndarray  # (clients,); NaN where there is none
    realised: np.ndarray  # (clients,); NaN where unknown
    held_out: int  # samples kept for validation
    client_names: tuple[str, ...] = ()  # where clients have names
    test_truth: str = CLEAN  # what the labels of the test set are
    reviewed: int = 0  # of the clients' samples, those whose clean label is known although not all are

    def called(self, k: int) -> str:
        """What people call client `k`."""
        return self.client_names[k] if self.client_names else str(k)

    @property
    def num_clients(self) -> int:
        return len(self.shards)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.array([len(shard) for shard in self.shards])

    @cached_property
    def counts(self) -> np.ndarray:
        """(clients, classes): samples by true class, or by observed label where the truth is unknown."""
        return self._counts(self.observed if self.clean is None else self.clean)

    @cached_property
    def seen(self) -> np.ndarray:
        """(clients, classes): samples by observed label."""
        return self._counts(self.observed)

    @property
    def noise(self) -> float:
        """Share of wrong labels among all clients' samples; NaN where unknown."""
        return float(np.average(self.realised, weights=self.sizes)) if self.sizes.any() else float("nan")

    def transition(self, client: int | None = None) -> np.ndarray | None:
        """(classes, classes): samples of true class i that carry label j, of one client or of all."""
        if self.clean is None:
            return None
        index = np.concatenate(self.shards) if client is None else self.shards[client]
        pairs = self.clean[index] * self.num_classes + self.observed[index]
        return np.bincount(pairs, minlength=self.num_classes**2).reshape(self.num_classes, -1)

    @cached_property
    def remarks(self) -> tuple[Remark, ...]:
        """What to be warned of, the gravest first."""
        found = [*_about_data(self), *_about_sizes(self), *_about_classes(self), *_about_noise(self)]
        return tuple(remark for remark in found if remark is not None)

    def table(self) -> pd.DataFrame:
        """One row per client: size, classes, noise, remarks, and samples per class."""
        import pandas as pd  # late: runs look at the remarks only

        tags: list[list[str]] = [[] for _ in range(self.num_clients)]
        for remark in self.remarks:
            for k in remark.clients if remark.tag else ():
                tags[k].append(remark.tag)
        facts = {
            "client": [*self.client_names] or np.arange(self.num_clients),
            "size": self.sizes,
            "classes": (self.counts > 0).sum(1),
            "classes_observed": (self.seen > 0).sum(1),
            "nominal": self.nominal,
            "realised": self.realised,
            "remarks": ["; ".join(some) for some in tags],
        }
        per_class = {f"class_{name}": self.counts[:, j] for j, name in enumerate(self.class_names)}
        return pd.DataFrame(facts | per_class)

    def _counts(self, labels: np.ndarray) -> np.ndarray:
        owner = np.repeat(np.arange(self.num_clients), self.sizes)
        cells = owner * self.num_classes + labels[np.concatenate(self.shards)]
        return np.bincount(cells, minlength=self.num_clients * self.num_classes).reshape(self.num_clients, -1)


def card(scenario: Scenario, truth: Truth, class_names: Sequence[str] = ()) -> Card:
    """The card of a scenario."""
    return Card(
        scenario.name,
        scenario.fingerprint,
        scenario.origin,
        tuple(class_names) or tuple(str(j) for j in range(scenario.num_classes)),
        scenario.labels.numpy(),
        None if truth.labels is None else truth.labels.numpy(),
        tuple(shard.numpy() for shard in scenario.shards),
        truth.nominal.numpy(),
        truth.realised.numpy(),
        0 if truth.validation is None else len(truth.validation),
        scenario.client_names,
        truth.test_truth,
        0 if truth.reviewed is None else sum(int((truth.reviewed[s] != UNKNOWN).sum()) for s in scenario.shards),
    )


def named(clients: Sequence[int], called: Callable[[int], str] = str) -> str:
    """Clients by number or name, shortened: `client 3`, `clients 1, 4`, `clients 0, 1, ... and 12 more`."""
    some = ", ".join(called(k) for k in clients[:NAMED])
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    return f"{'client' if len(clients) == 1 else 'clients'} {some}{more}"


def _about_data(card: Card) -> list[Remark | None]:
    unused = len(card.observed) - int(card.sizes.sum()) - card.held_out
    dropped = f"{unused} of {len(card.observed)} training samples belong to no client"
    few = f"only {card.num_clients} clients: too few for methods that fit a mixture over clients (FedCorr, FedNoRo)"
    noisy_test = "the test set has observed labels, which may be wrong: accuracy on it is agreement with them"
    lost = [name for name, total in zip(card.class_names, card.counts.sum(0), strict=True) if not total]
    unseen = [name for name, total in zip(card.class_names, card.seen.sum(0), strict=True) if not total]
    absent = set(unseen) - set(lost)
    return [
        Remark("", f"no client holds class {', '.join(lost)}", "no client holds some class") if lost else None,
        Remark("", f"no client has a sample labelled {', '.join(unseen)}", "some label is never seen")
        if absent
        else None,
        Remark("", dropped, "training samples belong to no client") if unused > 0 else None,
        Remark("", noisy_test, noisy_test) if card.test_truth == OBSERVED else None,
        Remark("", few, few) if 1 < card.num_clients < MIXTURE_SIZE else None,
    ]


def _about_sizes(card: Card) -> list[Remark | None]:
    some = card.sizes > 0
    return [
        _remark(card, card.sizes == 0, "empty", "without samples, so they never take part"),
        _remark(
            card,
            some & (card.sizes < MIXTURE_SIZE),
            "few for a GMM",
            f"fewer than {MIXTURE_SIZE} samples, too few to fit a two-component mixture to",
        ),
        _remark(
            card,
            some & (card.sizes <= LID_NEIGHBOURS),
            "few for LID",
            f"at most {LID_NEIGHBOURS} samples, so LID has fewer than k={LID_NEIGHBOURS} neighbours",
        ),
    ]


def _about_classes(card: Card) -> list[Remark | None]:
    present = (card.counts > 0).sum(1)
    fewest = int(present[card.sizes > 0].min(initial=card.num_classes))
    return [
        _remark(card, (present == 1) & (card.num_classes > 1), "one class", "one class only"),
        _remark(
            card,
            (present > 1) & (present < card.num_classes),
            "",  # the table's column of classes says it
            f"some of the {card.num_classes} classes missing",
            f" (the fewest that a client has: {fewest})",
        ),
    ]


def _about_noise(card: Card) -> list[Remark | None]:
    if card.clean is None:
        if card.reviewed:
            known = f"the true labels of {card.reviewed:,} reviewed samples alone are known"
        else:
            known = "nobody knows the true labels"
        unknown = f"{known}: noise levels and their detection cannot be measured"
        return [Remark("", unknown, unknown)]
    if card.fingerprint != card.origin:  # an oracle changed the realised levels on purpose
        return []
    gap = np.abs(card.nominal - card.realised)
    chance = 3 * np.sqrt(card.nominal * (1 - card.nominal) / np.maximum(card.sizes, 1))
    far = (card.sizes > 0) & (gap > np.maximum(FAR_APART, chance))  # False where there is no nominal level
    k = int(np.argmax(np.where(far, gap, -1)))
    most = f" (most: client {card.called(k)}, nominal {card.nominal[k]:.2f}, realised {card.realised[k]:.2f})"
    return [_remark(card, far, "nominal ≠ realised", "share of wrong labels far from the nominal level", most)]


def _remark(card: Card, which: np.ndarray, tag: str, problem: str, detail: str = "") -> Remark | None:
    clients = tuple(np.flatnonzero(which).tolist())
    said = f"{problem}{detail}: {named(clients, card.called)}"
    return Remark(tag, said, problem, clients) if clients else None
