"""What is measured: experiments on images whose content does not matter, and the calls of one round of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from fnll.errors import UserError
from fnll.federation import Executor, federate
from fnll.harness.checkpoint import Checkpoints
from fnll.harness.config import compose
from fnll.harness.declared import check_settings
from fnll.harness.observer import Observer
from fnll.harness.prepare import Run, device_of, made, scenario_of
from fnll.harness.run_folder import RunFolder
from fnll.images import Augmentation, HorizontalFlip, InMemory, RandomCrop, Transform
from fnll.local import LocalSpec
from fnll.scenario.scenario import Dataset
from fnll.seeding import numpy_rng
from fnll.system.files import temporary_folder
from fnll.types import CPU, Call, Client, Update

AUGMENTED = 16  # pixels: images at least this wide are cropped and flipped, as the papers do with CIFAR's

LENET = (
    "model=lenet5", "dataset=synthetic", "dataset.size=32", "dataset.channels=3", "dataset.samples=5000",
    "dataset.test_samples=10000", "num_clients=10", "fraction=1.0", "local.epochs=5", "local.batch_size=10",
)  # fmt: skip


def run_of(words: Sequence[str]) -> Run:
    """The run that Hydra overrides describe; `dataset=synthetic` is drawn as plain uniform pixels.

    Class structure costs nothing in training and much in preparation. Every other data set is the real one.
    """
    request = compose(words)
    check_settings(request.cfg)
    cfg = request.cfg
    dataset = uniform_images(cfg.dataset) if request.choices["dataset"] == "synthetic" else made(cfg.dataset, "dataset")
    return Run(request, dataset, *scenario_of(cfg, dataset), device_of(cfg.device))


def uniform_images(cfg: DictConfig) -> Dataset:
    """Random bytes with random labels, of the sizes that the synthetic data set would have."""
    shape = (cfg.channels, cfg.size, cfg.size)

    def draw(count: int, part: str) -> tuple[InMemory, Tensor]:
        rng = numpy_rng(cfg.seed, "bench", part)
        pixels = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        return InMemory(torch.from_numpy(pixels)), torch.from_numpy(rng.permutation(np.arange(count) % cfg.classes))

    train, labels = draw(cfg.samples, "train")
    test, test_labels = draw(cfg.test_samples, "test")
    moves: tuple[Augmentation, ...] = (RandomCrop(4), HorizontalFlip()) if cfg.size >= AUGMENTED else ()
    transform = Transform((0.5,) * cfg.channels, (0.29,) * cfg.channels, moves)
    return Dataset("uniform", train, labels, test, test_labels, cfg.classes, transform)


def local_of(run: Run) -> LocalSpec:
    """How the run's clients train."""
    spec: LocalSpec = made(run.cfg.local, "local")
    return spec


class _AskedError(Exception):
    """Carries the calls of a map that nobody does."""


@dataclass(frozen=True)
class _Listener:
    """An executor that only hears what it is asked for."""

    exact = True

    def map(self, calls: Sequence[Call]) -> list[Update]:
        raise _AskedError(calls)

    def close(self) -> None:
        """Nothing to release."""


def first_calls(run: Run) -> list[Call]:
    """What the method's server asks of its clients first: a round of training."""
    try:
        play(run, _Listener(), 1)
    except _AskedError as asked:
        return list(asked.args[0])
    raise UserError(f"method={run.request.name} asks nothing of its clients in its first round")


def clients_of(run: Run, calls: Sequence[Call]) -> list[Client]:
    """The clients of `calls` as their jobs see them."""
    return [
        run.scenario.client(c.client, t=c.t, memory=c.memory, labels=c.labels, seed=c.seed, device=CPU) for c in calls
    ]


def trained(run: Run, calls: Sequence[Call]) -> int:
    """Samples that the clients of `calls` go through."""
    return sum(run.scenario.sizes[call.client] for call in calls) * local_of(run).epochs


@contextmanager
def observed(run: Run, *, overlap: bool) -> Iterator[Observer]:
    """An observer that writes to a folder which is gone afterwards."""
    with temporary_folder() as place:
        folder = RunFolder(place / "run")
        folder.open()
        observer = Observer(run, folder, Checkpoints(folder.path / "checkpoint", "bench"), [], overlap)
        try:
            yield observer
        finally:
            observer.close()
            folder.close()


def play(run: Run, executor: Executor, count: int, observer: Observer | None = None) -> None:
    """The first `count` rounds of a run, as `fnll run` does them."""
    rounds = federate(run.method, executor, run.world, budget=run.budget, seed=run.cfg.seed)
    for snapshot, ledger in islice(rounds, count):
        if observer is not None:
            observer.see(snapshot, ledger)
    if observer is not None:
        observer.settle()
