"""What a command is doing while nothing is to be seen of it yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Say it on stderr: on a terminal for as long as it lasts, elsewhere in a line of its own."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        say(text)
        yield


def say(text: str) -> None:
    """Say it in a line on stderr, to stay there."""
    Console(stderr=True, highlight=False).print(text, soft_wrap=True, markup=False)
