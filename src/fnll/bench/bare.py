"""The yardsticks: the same network on the same batches, with nothing around the four lines of a training step."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fnll.bench.measure import Stopwatch, deterministic
from fnll.executors.numerics import limit_threads
from fnll.local import LocalSpec
from fnll.net import Net
from fnll.types import Client

START = "spawn"  # as a script of one's own would start: nothing is inherited
READY_MADE = 1 << 29  # bytes of batches that are made beforehand; of larger rounds, the first so many

Batches = list[tuple[Tensor, Tensor]]


def ready_made(clients: Iterable[Client], spec: LocalSpec) -> Batches:
    """The batches that the clients would train on, augmented and all."""
    made: Batches = []
    size = 0
    for client in clients:
        for batch in client.batches(spec.batch_size, spec.epochs):
            made.append((batch.x, batch.y))
            size += batch.x.numel() * batch.x.element_size()
            if size >= READY_MADE:
                return made
    return made


def loop(net: Net, spec: LocalSpec, batches: Batches, watch: Stopwatch) -> int:
    """Train on `batches`; returns the number of samples."""
    module = net.load(net.fresh(0)).train()
    optimizer = spec.optimizer(module.parameters(), lr=spec.lr)
    with deterministic("default"), watch:
        for x, y in batches:
            loss = F.cross_entropy(module(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return sum(len(y) for _, y in batches)


class Processes:
    """Bare loops side by side, one in each of `count` processes, which share out the clients and start together."""

    def __init__(self, net: Net, spec: LocalSpec, clients: Sequence[Client], count: int) -> None:
        context: Any = multiprocessing.get_context(START)
        self._workers = []
        for part in _dealt(clients, count):
            ours, theirs = context.Pipe()
            arguments = (theirs, net, spec, [_alone(client) for client in part])
            process = context.Process(target=_serve, args=arguments, daemon=True, name="fnll-bare")
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        for _, connection in self._workers:
            connection.recv()  # its batches are ready

    def __call__(self, watch: Stopwatch) -> int:
        """All loops once, until the last is over."""
        with watch:
            for _, connection in self._workers:
                connection.send("go")
            return sum(connection.recv() for _, connection in self._workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process, connection in self._workers:
            connection.close()
            process.join()


def _dealt(clients: Sequence[Client], count: int) -> list[list[Client]]:
    """The clients in groups of about equal size, largest first to the smallest group."""
    groups: list[list[Client]] = [[] for _ in range(count)]
    for client in sorted(clients, key=len, reverse=True):
        min(groups, key=lambda group: sum(map(len, group))).append(client)
    return [group for group in groups if group]


def _alone(client: Client) -> Client:
    """The client with its own images only: another process needs no more."""
    data = client.data
    own = replace(data, images=data.images.select(data.index), index=torch.arange(len(data)))
    return replace(client, data=own, memory={})


def _serve(connection: Connection, net: Net, spec: LocalSpec, clients: list[Client]) -> None:
    limit_threads(1)
    batches = ready_made(clients, spec)
    loop(net, spec, batches[:50], Stopwatch())
    connection.send("ready")
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        connection.send(loop(net, spec, batches, Stopwatch()))
