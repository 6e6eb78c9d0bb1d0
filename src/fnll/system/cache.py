"""A place for what can be computed again: decoded images, trained annotators.

An entry is a folder that appears whole or not at all, under a name that hashes everything it was made from. Deleting
the cache costs time and nothing else.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from fnll.errors import UserError

log = logging.getLogger(__name__)

T = TypeVar("T")


def cache_dir() -> Path:
    """`$FNLL_CACHE`, or `~/.cache/fnll`; made if it is not there."""
    path = Path(os.environ.get("FNLL_CACHE") or Path.home() / ".cache" / "fnll").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the cache folder {path} cannot be made ({error}); set FNLL_CACHE to a folder you can write"
        ) from error
    return path


def cached(name: str, build: Callable[[Path], None], load: Callable[[Path], T]) -> T:
    """What `load` reads from entry `name` of the cache; `build` fills the entry's folder if it is missing or damaged.

    `load` says that an entry is unusable by raising OSError or ValueError. Processes that want the same
    entry at once build it once: the others wait.
    """
    folder = cache_dir() / name
    entry = _loaded(folder, load)
    if entry is not None:
        return entry[0]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        entry = _loaded(folder, load)  # another process may have built it while this one waited
        if entry is None:
            _build(folder, build)
            entry = (load(folder),)
    return entry[0]


def _loaded(folder: Path, load: Callable[[Path], T]) -> tuple[T] | None:
    if not folder.is_dir():
        return None
    try:
        return (load(folder),)
    except (OSError, ValueError) as error:
        log.warning("the cache entry %s is damaged (%s) and will be made again", folder, error)
        return None


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".unfinished", dir=folder.parent))
    try:
        build(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
