"""Tiny scenarios that hold every awkward client there is, and runs of a method in them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fnll.executors import Serial
from fnll.federation import Executor, Method, Snapshot, World, federate
from fnll.local import LocalSpec, sgd
from fnll.models import mlp
from fnll.net import Net
from fnll.scenario import Dataset, Scenario, Truth, assemble
from fnll.scenario.datasets import synthetic
from fnll.seeding import numpy_rng

CLIENTS, CLASSES, PER_CLIENT = 6, 4, 12
ROUNDS = 8  # of a run unless a check says otherwise


@dataclass(frozen=True)
class TinyWorld:
    """Six clients with a dozen 4x4 images each, of four classes; made awkward by name.

    Kinds: `noisy` (clients 0 to 2 have half of their labels wrong), `clean`, `all_noisy`, `one_sample` (client 1 has
    one sample), `empty` (client 1 has none), `single_class` (client 1 observes one class), `balanced` (clean, and
    every client holds every class equally often).
    """

    kind: str = "noisy"
    seed: int = 0
    other_truth: bool = False  # the same observed labels in a world where other labels are the true ones
    altered: int | None = None  # a client whose labels are all changed
    dataset: Dataset = field(init=False)
    scenario: Scenario = field(init=False)
    truth: Truth = field(init=False)

    def __post_init__(self) -> None:
        rng = numpy_rng(self.seed, "tiny", self.kind)
        dataset = synthetic(
            samples=CLIENTS * PER_CLIENT, test_samples=200, classes=CLASSES, size=4, channels=1, separation=6.0,
            seed=self.seed, subset=None, imbalance=None, validation=None,
        )  # fmt: skip
        labels = dataset.labels.numpy()
        shards = self._shards(labels)
        observed = self._observed(labels, shards, rng)
        if self.other_truth:
            dataset = replace(dataset, labels=torch.from_numpy((labels + 1) % CLASSES))
        tensors = tuple(torch.from_numpy(shard) for shard in shards)
        nominal = torch.full((CLIENTS,), float("nan"), dtype=torch.float64)
        scenario, truth = assemble(dataset, tensors, torch.from_numpy(observed), nominal)
        for name, value in (("dataset", dataset), ("scenario", scenario), ("truth", truth)):
            object.__setattr__(self, name, value)

    def _shards(self, labels: np.ndarray) -> list[np.ndarray]:
        by_class = np.argsort(labels, kind="stable").reshape(CLASSES, CLIENTS, PER_CLIENT // CLASSES)
        shards = [np.sort(by_class[:, k].ravel()) for k in range(CLIENTS)]
        keep = {"one_sample": 1, "empty": 0}.get(self.kind)
        if keep is not None:
            shards[0] = np.concatenate([shards[0], shards[1][keep:]])
            shards[1] = shards[1][:keep]
        return shards

    def _observed(self, labels: np.ndarray, shards: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        observed = labels.copy()
        noisy = {"clean": 0, "balanced": 0, "all_noisy": CLIENTS}.get(self.kind, CLIENTS // 2)
        for shard in shards[:noisy]:
            wrong = rng.permutation(shard)[: len(shard) // 2]
            observed[wrong] = (labels[wrong] + rng.integers(1, CLASSES, len(wrong))) % CLASSES
        if self.kind == "single_class":
            observed[shards[1]] = 0
        if self.altered is not None:
            observed[shards[self.altered]] = (observed[shards[self.altered]] + 1) % CLASSES
        return observed

    @property
    def public(self) -> World:
        return World(self.scenario.sizes, self.scenario.num_classes, self.scenario.input_shape)

    def shared(self, cohort: int = 3, **local: Any) -> dict[str, Any]:
        """What every method is given: a small network, two local epochs, and the cohort's size."""
        net = Net.of(mlp, hidden=(8,), num_classes=CLASSES, input_shape=self.scenario.input_shape)
        return {"net": net, "local": tiny_local(**local), "cohort_size": cohort}


def tiny_local(**changes: Any) -> LocalSpec:
    """Two epochs of SGD with batches of five, so that the last batch is smaller."""
    settings: dict[str, Any] = {
        "epochs": 2, "batch_size": 5, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.0, "lr_decay": 1.0,
        "clip_norm": None, "keep_optimizer": False, "precision": "32-true",
    }  # fmt: skip
    return sgd(**{**settings, **changes})


def play(
    method: Method,
    world: TinyWorld,
    *,
    rounds: int = ROUNDS,
    cohort: int = 3,
    seed: int = 0,
    executor: Executor | None = None,
    resume: Snapshot | None = None,
) -> list[Snapshot]:
    """Run `method` in a tiny world and return the snapshot after every round."""
    runner = executor or Serial(world.scenario)
    rows = federate(method, runner, world.public, budget=rounds * cohort, seed=seed, resume=resume)
    return [snapshot for snapshot, _ in rows]


def accuracy(method: Method, snapshot: Snapshot, world: TinyWorld) -> float:
    """Share of the clean test set that the method's model gets right."""
    model = method.model(snapshot.state).eval()
    pixels = world.truth.test.take(torch.arange(len(world.truth.test)))
    with torch.inference_mode():
        right: Tensor = model(world.scenario.transform.plain(pixels)).argmax(1) == world.truth.test_labels
    return float(right.double().mean())
