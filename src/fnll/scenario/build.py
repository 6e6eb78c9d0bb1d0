"""Dataset x partition x noise x seed -> (Scenario, Truth): the only code that knows the clean labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fnll.errors import UserError
from fnll.scenario.legacy import require_published_order
from fnll.scenario.scenario import (
    UNKNOWN,
    Dataset,
    GivenByData,
    Noise,
    Partition,
    Scenario,
    Shards,
    Truth,
    fingerprint,
)
from fnll.seeding import derive
from fnll.settings import checked

Oracle = Literal["none", "drop_noisy", "true_labels"]
NumClients = Annotated[int, Field(ge=1, description="the number of clients the training set is split over")]


@checked("scenario")
def build(
    dataset: Dataset,
    partition: Partition,
    noise: Noise,
    *,
    num_clients: NumClients,
    seed: int,
    oracle: Oracle = "none",
    pooled: bool = False,
) -> tuple[Scenario, Truth]:
    """Split `dataset` over clients and corrupt their labels.

    `oracle` then uses the truth: `drop_noisy` deletes wrongly labelled samples (FedRN's Oracle), `true_labels` corrects
    them. `pooled` merges all clients into one that holds exactly the federated labels: a centralised reference.
    """
    require_published_order(dataset, partition, noise)
    parts = _parts(dataset, partition, num_clients, derive(seed, "partition"))
    noisy = noise(dataset, parts, derive(seed, "noise"))
    shards = tuple(torch.from_numpy(np.ascontiguousarray(part, dtype=np.int64)) for part in parts)
    observed = torch.from_numpy(np.ascontiguousarray(noisy.labels, dtype=np.int64))
    return assemble(dataset, shards, observed, torch.from_numpy(noisy.nominal).double(), oracle=oracle, pooled=pooled)


@checked("scenario")
def assemble(
    dataset: Dataset,
    shards: Shards,
    observed: Tensor,
    nominal: Tensor,
    *,
    oracle: Oracle = "none",
    pooled: bool = False,
    clean: Tensor | None = None,
) -> tuple[Scenario, Truth]:
    """Scenario and truth from ready-made labels and shards, with the oracle and the pooling applied."""
    if clean is None:
        clean = clean_of(dataset)
    if dataset.validation is not None:  # taken from every client after noise, so it is as noisy as what they train on
        shards = tuple(shard[~torch.isin(shard, dataset.validation)] for shard in shards)
    origin, truth = _as_observed(dataset, shards, observed, nominal, clean)
    scenario = origin
    if oracle != "none":
        scenario, truth = _helped(scenario, truth, oracle)
    if pooled:
        scenario, truth = _pooled(scenario, truth)
    if scenario is not origin:
        mark = fingerprint(dataset.train, scenario.labels, scenario.shards, dataset.test, dataset.test_labels)
        scenario = replace(scenario, fingerprint=mark)
    return scenario, truth


def _as_observed(
    dataset: Dataset, shards: Shards, observed: Tensor, nominal: Tensor, clean: Tensor | None
) -> tuple[Scenario, Truth]:
    """What the clients have, and the truth about it, before an oracle or pooling."""
    wrong = None if clean is None else observed != clean
    realised = torch.tensor([_share(wrong, shard) for shard in shards], dtype=torch.float64)
    mark = fingerprint(dataset.train, observed, shards, dataset.test, dataset.test_labels)
    given = Scenario(dataset.train, observed, shards, dataset.num_classes, dataset.transform, mark, mark, dataset.name)
    truth = Truth(clean, nominal, realised, dataset.test, dataset.test_labels, dataset.validation)
    truth = replace(truth, reviewed=dataset.reviewed if clean is None else None, test_truth=dataset.test_truth)
    return replace(given, client_names=_names(dataset, shards)), truth


def _helped(scenario: Scenario, truth: Truth, oracle: Oracle) -> tuple[Scenario, Truth]:
    """With what an oracle makes of the truth."""
    if truth.labels is None:
        raise UserError(f"scenario.oracle={oracle} needs clean labels, and nobody knows those of {scenario.name}")
    if oracle == "drop_noisy":
        wrong = scenario.labels != truth.labels
        helped = replace(scenario, shards=tuple(shard[~wrong[shard]] for shard in scenario.shards))
    else:
        helped = replace(scenario, labels=truth.labels)
    return helped, replace(truth, realised=torch.zeros_like(truth.realised))


def _pooled(scenario: Scenario, truth: Truth) -> tuple[Scenario, Truth]:
    """All clients as one that holds exactly their labels."""
    pooled = replace(scenario, shards=(torch.cat(scenario.shards),), client_names=())
    share = _share(None if truth.labels is None else pooled.labels != truth.labels, pooled.shards[0])
    nominal, realised = torch.tensor([float("nan")]).double(), torch.tensor([share]).double()
    return pooled, replace(truth, nominal=nominal, realised=realised)


def _parts(dataset: Dataset, partition: Partition, num_clients: int, seed: int) -> list[np.ndarray]:
    """Who has which samples."""
    if isinstance(partition, GivenByData):  # as many clients as the data name
        return partition.given(dataset)
    available = len(dataset.labels)
    if num_clients > available:
        raise UserError(
            f"num_clients={num_clients} is more than the {available} training samples of {dataset.name}; "
            f"type num_clients={available} or fewer"
        )
    parts = partition(dataset.labels.numpy(), num_clients, seed)
    if len(parts) != num_clients:  # tables would call the same federation by two names
        raise UserError(
            f"the partition {type(partition).__name__} gives {len(parts)} clients where num_clients={num_clients}; "
            f"type num_clients={len(parts)}"
        )
    return parts


def clean_of(dataset: Dataset) -> Tensor | None:
    """The clean labels, if all are known."""
    if not dataset.native_noise:
        return dataset.labels
    known = dataset.reviewed
    return known if known is not None and bool((known != UNKNOWN).all()) else None


def _names(dataset: Dataset, shards: Shards) -> tuple[str, ...]:
    """The clients' names, if these are the clients that the data name."""
    owners, names = dataset.owners, dataset.client_names
    if owners is None or len(names) != len(shards):
        return ()
    return names if all(bool((owners[shard] == k).all()) for k, shard in enumerate(shards)) else ()


def _share(wrong: Tensor | None, shard: Tensor) -> float:
    if wrong is None:
        return float("nan")
    return float(wrong[shard].double().mean()) if len(shard) else 0.0
