"""What the executors' tests share, in a module of its own: worker processes import a job by its module's name."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fnll.errors import UserError
from fnll.images import HorizontalFlip, InMemory, RandomCrop, Transform
from fnll.scenario.scenario import Scenario
from fnll.types import Call, Client, Update
from fnll.weights import Weights, snapshot

SIZES = (7, 0, 25, 1, 12, 40)
CLASSES = 3
EVERYONE = [k for k, size in enumerate(SIZES) if size]


def scenario(sizes: tuple[int, ...] = SIZES) -> Scenario:
    """Random images and labels; client k holds `sizes[k]` of them."""
    generator = torch.Generator().manual_seed(1)
    n = sum(sizes)
    pixels = torch.randint(0, 256, (n, 1, 8, 8), generator=generator).to(torch.uint8)
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    shards = torch.randperm(n, generator=generator).split(list(sizes))
    transform = Transform((0.5,), (0.25,), (RandomCrop(1), HorizontalFlip()))
    return Scenario(InMemory(pixels), labels, tuple(shards), CLASSES, transform, "tiny", "tiny")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, CLASSES)
    )


def initial() -> Weights:
    """The first global model."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return snapshot(network())


def call(job: Any, k: int, *, t: int = 0, memory: Any = None, labels: Tensor | None = None, **message: Any) -> Call:
    return Call(job, k, t, message, memory or {}, labels, seed=1000 * t + k)


@dataclass(frozen=True)
class Learner:
    """A method's jobs: pure in what they are given."""

    lr: float = 0.1

    def train(self, client: Client, weights: Weights, neighbours: list[Weights]) -> Update:
        """SGD with dropout (from the global generator), BatchNorm, memory, corrected labels; every kind of output."""
        net = network()
        net.load_state_dict(weights)
        optimizer = torch.optim.SGD(net.parameters(), self.lr, momentum=0.9)
        for batch in client.batches(6, 2):
            if len(batch.y) < 2:
                continue
            optimizer.zero_grad()
            loss = F.cross_entropy(net(batch.x), batch.y)
            loss.backward()
            optimizer.step()
        kept = client.memory.get("visits", torch.tensor(0))
        assert isinstance(kept, Tensor)
        closeness = [sum((n[k].double() - w.double()).square().sum() for k, w in weights.items()) for n in neighbours]
        trained = snapshot(net)
        return Update(
            trained,
            report={"noise": torch.rand(2, dtype=torch.float64), "numpy": np.random.rand(), "python": random.random()},
            memory={"visits": kept + 1, "model": trained, "first": trained["0.weight"].to(torch.bfloat16)},
            trace={"closeness": torch.tensor([float(c) for c in closeness], dtype=torch.float64), "y": client.data.y},
            labels=(client.data.y + 1) % CLASSES,
        )


@dataclass(frozen=True)
class Odd:
    """Jobs that go wrong, or that return unusual things."""

    folder: str = ""

    def echo(self, client: Client, **message: Any) -> Update:
        return Update(report=message)

    def views(self, client: Client) -> Update:
        base = torch.arange(12.0).view(3, 4)
        return Update({"base": base, "row": base[1], "column": base[:, 1], "turned": base.t(), "again": base})

    def spoil(self, client: Client, weights: Weights) -> Update:
        """Not pure: writes into the message and into the data."""
        for value in weights.values():
            value.zero_()
        client.data.images.pixels.zero_()  # type: ignore[attr-defined]
        return Update()

    def large(self, client: Client, n: int) -> Update:
        return Update({"w": torch.arange(float(n))})

    def who(self, client: Client) -> Update:
        facts = {"pid": os.getpid(), "threads": torch.get_num_threads(), "dtype": str(torch.get_default_dtype())}
        deterministic = torch.get_deterministic_debug_mode()
        return Update(report={**facts, "deterministic": deterministic, "directory": os.getcwd()})  # type: ignore[dict-item]

    def fail(self, client: Client, who: tuple[int, ...] = ()) -> Update:
        if client.id in who:
            raise LookupError(f"no such thing at client {client.id}")
        return Update(report={"fine": 1.0})

    def mistake(self, client: Client) -> Update:
        raise UserError("type something else")

    def odd_error(self, client: Client) -> Update:
        raise PickyError(1, 2)

    def unsendable(self, client: Client) -> Update:
        return Update(report={"lock": threading.Lock()})  # type: ignore[dict-item]

    def die_once(self, client: Client, weights: Weights, victims: tuple[int, ...]) -> Update:
        """Take the worker down the first time that a victim is asked; train the second time."""
        marker = Path(self.folder) / f"died-{client.id}"
        if client.id in victims and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Learner().train(client, weights, [])

    def always_die(self, client: Client) -> Update:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    def leave(self, client: Client) -> Update:
        os._exit(3)

    def sleep(self, client: Client, seconds: float) -> Update:
        (Path(self.folder) / f"{os.getpid()}.worker").touch()
        time.sleep(seconds)
        return Update(report={"started": time.monotonic()})


class PickyError(Exception):
    """Cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} against {right}")


def round_of_calls(clients: list[int], t: int = 0) -> list[Call]:
    """A cohort as FedRN has it: everyone is sent the same global model and the same neighbours."""
    weights = initial()
    neighbours = [{name: value + k for name, value in weights.items()} for k in range(3)]
    memory = {"visits": torch.tensor(t), "model": neighbours[0]}
    return [
        call(Learner().train, k, t=t, weights=weights, neighbours=neighbours[k % 2 :], memory=memory, labels=labels(k))
        for k in clients
    ]


def labels(k: int) -> Tensor | None:
    return torch.arange(SIZES[k]) % CLASSES if k % 2 else None


def flat(value: Any) -> Any:
    """A value whose equality is bitwise equality."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.stride(), value.contiguous().reshape(-1).view(torch.uint8).tolist()
    if isinstance(value, dict):
        return {key: flat(part) for key, part in value.items()}
    return value


def assert_same(ours: list[Update], theirs: list[Update]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert flat(vars(mine)) == flat(vars(other))
