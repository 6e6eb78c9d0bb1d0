"""Fetching files that may be had from the net, once, by one process at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path

from fnll.scenario.datasets.sources import Folder, missing
from fnll.system.files import locked, make_folder, refuse_link

ELSEWHERE = "name their place with dataset.root=DIR or the environment variable FNLL_DATA"


def obtain(folder: Folder, names: Sequence[str], *, download: bool, fetch: Callable[[], object]) -> None:
    """Demand that `names` exist in `folder`, after a download by `fetch` if they do not and `download` allows it."""
    if download and not all(folder.has(name) for name in names):
        root = make_folder(Path(folder.root))
        for name in names:
            refuse_link(Path(folder.place(name)))  # one that leads nowhere: what is fetched would be written there
        with locked(root / ".download.lock"):
            try:
                fetch()  # does nothing if another process fetched the files while this one waited
            except (OSError, RuntimeError, HTTPException) as error:
                absent = [name for name in names if not folder.has(name)]
                raise missing(folder, absent or names, reason=f"the download failed: {error}") from error
    folder.require(names)
