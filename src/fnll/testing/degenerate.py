"""Checks that a method copes with every awkward federation there is."""

from __future__ import annotations

from fnll.federation import Snapshot
from fnll.testing.registry import check, fail
from fnll.testing.subject import Subject
from fnll.testing.worlds import CLIENTS, TinyWorld, play
from fnll.weights import all_finite


@check(
    "The global weights stay finite.",
    "One bad division would end the run as diverged.",
    "Guard minima, maxima and mixtures of constant or empty input.",
)
def finite(subject: Subject) -> None:
    _complete_and_finite(subject.plain_run, 8, 3)


@check(
    "It copes when no client is noisy.",
    "Robust methods must not break on clean data, the first column of every table.",
    "A two-component mixture always splits; handle an empty noisy set.",
)
def no_noisy_clients(subject: Subject) -> None:
    _survives(subject, "clean")


@check(
    "It copes when every client is noisy.",
    "The hardest column of a grid would be missing.",
    "Handle an empty clean set.",
)
def all_noisy_clients(subject: Subject) -> None:
    _survives(subject, "all_noisy")


@check(
    "It copes with a client whose labels are all of one class.",
    "Strongly non-IID partitions have such clients.",
    "Class priors of zero, per-class statistics of missing classes and flat losses need a rule.",
)
def single_class_client(subject: Subject) -> None:
    _survives(subject, "single_class")


@check(
    "It copes with a client that has one sample.",
    "Dirichlet partitions have such clients.",
    "Mixtures and nearest neighbours need at least two points; have a rule for fewer.",
)
def one_sample_client(subject: Subject) -> None:
    _survives(subject, "one_sample")


@check(
    "It copes with a client that has no samples.",
    "Partitions and oracles can leave such clients.",
    "fed.sample never returns an empty client; use fed.inhabited when you ask everyone.",
)
def empty_client(subject: Subject) -> None:
    _survives(subject, "empty")


@check(
    "It copes with a cohort of one client.",
    "Small fractions give such cohorts.",
    "Aggregation and distances between clients need a rule for a single update.",
)
def cohort_of_one(subject: Subject) -> None:
    _survives(subject, "noisy", cohort=1, rounds=24)


@check(
    "It copes with all clients in every round.",
    "FedNoRo's paper runs all methods this way.",
    "Sampling all clients must not fail or repeat one.",
)
def cohort_of_all(subject: Subject) -> None:
    _survives(subject, "noisy", cohort=CLIENTS, rounds=4)


def _survives(subject: Subject, kind: str, cohort: int = 3, rounds: int = 8) -> None:
    world = TinyWorld(kind)
    snapshots = play(subject.method(world, cohort=cohort), world, cohort=cohort, rounds=rounds)
    _complete_and_finite(snapshots, rounds, cohort)


def _complete_and_finite(snapshots: list[Snapshot], rounds: int, cohort: int) -> None:
    for snapshot in snapshots:
        if not all_finite(snapshot.state.weights):
            fail(f"the weights are not finite after round {snapshot.t}")
    spent = snapshots[-1].totals.client_updates
    if spent < rounds * cohort:
        fail(f"it stopped after {spent} of {rounds * cohort} client updates")
