"""The other side of an executor: a process that holds the scenario and answers calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from fnll.executors.agenda import Answer, Failure, title
from fnll.executors.arena import Arena, Packer, Ticket, unpack
from fnll.executors.jobs import perform
from fnll.executors.numerics import Setup
from fnll.scenario.scenario import Scenario
from fnll.system.collecting import sparing_what_is_there
from fnll.system.notices import Collector
from fnll.system.processes import GONE
from fnll.system.workers import begin
from fnll.types import Call

HEARD = Collector()  # what is warned of in this process goes home with the next answer


def serve(connection: Connection, setup: Setup, directory: str) -> None:
    """Answer calls until the pipe closes. The first thing that comes through it is the scenario."""
    begin(directory)
    setup.apply()
    logging.getLogger().addHandler(HEARD)
    with suppress(*GONE):
        scenario = receive(connection)()
        with sparing_what_is_there():
            while True:
                _serve_one(connection, scenario, setup.device)


def answer(scenario: Scenario, read: Callable[[], Call], device: torch.device) -> tuple[Packer, Ticket]:
    """Do the call that `read` returns; lay out the update, or the failure, for the way back."""
    packer = Packer()
    try:
        with noting("workers import a job by its module's name; one defined in a notebook needs executor=serial"):
            call = read()
        update = perform(scenario, call, device)
        with noting(f"{title(call)}: what it returned cannot be sent to another process"):
            return packer, packer.add(Answer(update, HEARD.take()))
    except Exception as error:
        packer = Packer()
        return packer, packer.add(Answer(Failure.of(error), HEARD.take()))


def pack(packer: Packer, call: Call) -> Ticket:
    """Lay out a call for the way to a worker."""
    with noting(f"{title(call)}: its message cannot be sent to another process; executor=serial needs no sending"):
        return packer.add(call)


@contextmanager
def noting(text: str) -> Iterator[None]:
    """Add a note to whatever error passes."""
    try:
        yield
    except Exception as error:
        error.add_note(text)
        raise


def post(connection: Connection, arena: Arena, ticket: Ticket) -> None:
    """Tell the other end of a pipe where an object lies."""
    connection.send(tuple(ticket))
    arena.send(connection)


def receive(connection: Connection) -> Callable[[], Any]:
    """What the other end posted, as a function that unpacks it in place."""
    ticket = Ticket(*connection.recv())
    with Arena.receive(connection) as arena:
        flat = arena.map()
    return lambda: unpack(flat, ticket, own=False)


def _serve_one(connection: Connection, scenario: Scenario, device: torch.device) -> None:
    """A function of its own, so that nothing of one call is held in memory while the next is awaited."""
    packer, ticket = answer(scenario, receive(connection), device)
    with Arena.of(packer) as arena:
        post(connection, arena, ticket)
