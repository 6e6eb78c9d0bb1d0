"""A place for what can be computed again: decoded images, trained annotators.

An entry is a folder that appears whole or not at all, under a name that hashes everything it was made from. Deleting
the cache costs time and nothing else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fnll.errors import UserError
from fnll.system.files import build_folder, locked, make_folder

log = logging.getLogger(__name__)

T = TypeVar("T")


def cache_dir() -> Path:
    """`$FNLL_CACHE`, or `~/.cache/fnll`; made if it is not there."""
    path = Path(os.environ.get("FNLL_CACHE") or Path.home() / ".cache" / "fnll").expanduser()
    try:
        make_folder(path)
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
    make_folder(folder.parent)
    with locked(Path(f"{folder}.lock")):
        entry = _loaded(folder, load)  # another process may have built it while this one waited
        if entry is None:
            build_folder(folder, build)
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
