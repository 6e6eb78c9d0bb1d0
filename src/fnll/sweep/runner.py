"""The other side of the local launcher: a process that does one bundle of runs after the other."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

# Imported here so that the fork server has them once for all workers.
import lightning  # noqa: F401
import sklearn.mixture  # noqa: F401
import torchmetrics  # noqa: F401

import fnll.local
import fnll.methods  # noqa: F401
from fnll.sweep.abreast import Abreast
from fnll.sweep.events import Ended, Event, Said, Send
from fnll.sweep.perform import perform
from fnll.system.collecting import sparing_what_is_there
from fnll.system.processes import GONE
from fnll.system.workers import begin


def serve(connection: Connection, directory: str, spare_core: bool) -> None:
    """Do the bundles that come through the pipe until it closes."""
    begin(directory)

    def send(ticket: int, event: Event) -> None:
        try:
            connection.send((ticket, event))
        except GONE:  # the sweep was killed: leave the run as it is, to be resumed
            os._exit(1)

    runs = Abreast()
    with suppress(*GONE), sparing_what_is_there():
        while True:
            bundle = connection.recv()
            for ticket, run in bundle.items():
                to_parent = partial(send, ticket)
                speak_through(to_parent)
                if len(bundle) > 1:
                    runs.add(run, to_parent)
                else:
                    to_parent(Ended(perform(run, to_parent, spare_core=spare_core)))
            while runs:
                runs.turn()


def speak_through(send: Send) -> None:
    """Send warnings of this process to the sweep's display, which a line on the terminal would tear apart."""
    root = logging.getLogger()
    root.handlers = [Speaker(send)]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)


class Speaker(logging.Handler):
    """A log that ends in the parent process."""

    def __init__(self, send: Send) -> None:
        super().__init__(logging.WARNING)
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        self.send(Said(record.getMessage().strip().split("\n")[0], getattr(record, "about", "")))
