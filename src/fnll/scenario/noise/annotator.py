"""The networks that play the annotators of H-IDN: trained on a client's clean data, asked for p(Y|x) on the same data.

FedNoRo publishes neither their architecture nor their training, so both are ours: a small convolutional network, the
same whatever `model=` is, that sees images of at most 32x32 pixels without augmentation, and Adam for a few epochs, so
that easy samples are learnt and hard ones are not yet memorised.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated

import joblib
import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fnll.errors import UserError
from fnll.images import Transform
from fnll.scenario.scenario import Dataset
from fnll.seeding import scoped, torch_rng
from fnll.settings import check_fields
from fnll.system.cache import cache_dir, cached
from fnll.system.files import write_atomic

log = logging.getLogger(__name__)

LARGEST_SIDE = 32  # pixels; larger images are averaged down
GRID = 4  # cells a side that the last features are averaged over
AT_ONCE = 512  # images that are read or asked about together
WORTH_WORKERS = 2e7  # pixels seen in training that take about ten seconds, so that starting processes pays off
RECIPE = 1  # raised when the same settings give other probabilities, so that old cache entries are not found


@dataclass(frozen=True)
class Annotator:
    """How an annotator is made."""

    width: Annotated[int, Field(ge=1, description="channels of the annotator's first layer")]
    epochs: Annotated[int, Field(ge=1, description="passes over the client's clean data")]
    batch_size: Annotated[int, Field(ge=1, description="samples in one step of Adam")]
    lr: Annotated[float, Field(gt=0, description="the learning rate of Adam")]

    def __post_init__(self) -> None:
        check_fields(self, "noise.annotator")

    def network(self, channels: int, num_classes: int) -> nn.Module:
        """Two convolutions and a linear layer, without normalisation: any image size, batches of any size."""
        return nn.Sequential(
            nn.Conv2d(channels, self.width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(self.width, 2 * self.width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.AdaptiveAvgPool2d(GRID),
            nn.Flatten(),
            nn.Linear(2 * self.width * GRID**2, num_classes),
        )


@dataclass(frozen=True)
class Task:
    """One annotator's work."""

    annotator: Annotator
    index: np.ndarray  # the client's samples
    labels: np.ndarray  # their clean labels
    num_classes: int
    transform: Transform
    seed: int

    def name(self, images: str) -> str:
        """The cache entry: a hash of everything the probabilities depend on."""
        settings = [RECIPE, images, self.num_classes, self.transform.mean, self.transform.std, self.seed]
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([settings, asdict(self.annotator)], sort_keys=True).encode())
        for array in (self.index, self.labels):
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        return f"annotators/{digest.hexdigest()}"


def probabilities(dataset: Dataset, tasks: list[Task]) -> list[np.ndarray]:
    """p(Y|x), (n_k, classes) for every task, from the cache where it is there.

    What is missing is trained in worker processes if that pays off; every annotator is trained by one thread, so the
    result does not depend on how many there are.
    """
    images = dataset.train.digest
    missing = [task for task in tasks if not (cache_dir() / task.name(images)).is_dir()]
    height, width = (min(side, LARGEST_SIDE) for side in dataset.train.shape[1:])
    work = sum(len(task.index) * task.annotator.epochs for task in missing) * height * width
    workers = min(joblib.cpu_count(), len(missing))
    if missing:
        log.info("training %d annotators for noise=h_idn, once: they are kept in %s", len(missing), cache_dir())
    if workers > 1 and work > WORTH_WORKERS:
        with joblib.parallel_config("loky", n_jobs=workers, idle_worker_timeout=10):
            joblib.Parallel(max_nbytes=None)(
                joblib.delayed(_in_worker)(str(cache_dir()), task, images, shrunk(dataset, task.index).numpy())
                for task in missing
            )
    return [_cached(task, images, dataset) for task in tasks]


def _in_worker(cache: str, task: Task, images: str, pixels: np.ndarray) -> None:
    os.environ["FNLL_CACHE"] = cache  # a worker that outlived an earlier call may know another one
    _cached(task, images, pixels)


def _cached(task: Task, images: str, source: Dataset | np.ndarray) -> np.ndarray:
    def build(folder: Path) -> None:
        pixels = shrunk(source, task.index) if isinstance(source, Dataset) else torch.from_numpy(source)
        buffer = BytesIO()
        np.savez(buffer, p=train(task, pixels))
        write_atomic(folder / "probabilities.npz", buffer.getvalue())

    def load(folder: Path) -> np.ndarray:
        try:
            with np.load(folder / "probabilities.npz", allow_pickle=False) as file:
                p: np.ndarray = file["p"]
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            raise ValueError(error) from error
        if p.shape != (len(task.index), task.num_classes):
            raise ValueError(f"probabilities of shape {p.shape}")
        return p

    return cached(task.name(images), build, load)


def shrunk(dataset: Dataset, index: np.ndarray) -> Tensor:
    """The client's images, uint8, at most `LARGEST_SIDE` pixels a side."""
    rows = torch.from_numpy(index)
    size = [min(side, LARGEST_SIDE) for side in dataset.train.shape[1:]]
    parts = []
    for some in rows.split(AT_ONCE):
        pixels = dataset.train.take(some)
        if list(pixels.shape[2:]) != size:
            pixels = F.interpolate(pixels.float(), size, mode="area").round().to(torch.uint8)
        parts.append(pixels)
    return torch.cat(parts)


def train(task: Task, pixels: Tensor) -> np.ndarray:
    """Train an annotator on its client's clean samples and ask it for p(Y|x) of each, (n, classes) float64."""
    with one_thread():
        with scoped(task.seed):
            net = task.annotator.network(pixels.shape[1], task.num_classes)
        optimizer = torch.optim.Adam(net.parameters(), lr=task.annotator.lr)
        labels = torch.from_numpy(task.labels)
        for epoch in range(task.annotator.epochs):
            order = torch.randperm(len(labels), generator=torch_rng(task.seed, "order", epoch))
            for rows in order.split(task.annotator.batch_size):
                loss = F.cross_entropy(net(task.transform.plain(pixels[rows])), labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        net.eval()
        with torch.no_grad():
            logits = [net(task.transform.plain(some)) for some in pixels.split(AT_ONCE)]
    p = torch.cat(logits).double().softmax(1).numpy()
    if not np.isfinite(p).all():
        raise UserError(f"noise.annotator.lr={task.annotator.lr} makes an annotator diverge; type a smaller one")
    return p


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, as in a worker process: sums of floats depend on how they are shared out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
