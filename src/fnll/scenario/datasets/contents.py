"""What the files of a data set hold, as one hash; files are read again only if they may have changed.

Names, sizes and modification times do not tell two trees apart: archives and container layers set all times to zero,
and `cp -a`, `rsync -t` and `touch -r` restore them. The time of the last change (ctime) is the system's own and cannot
be set, so a hash is remembered with that, the inode and the place. Where it cannot be trusted either, files are read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from fnll.errors import UserError
from fnll.scenario.datasets.sources import Source
from fnll.system.cache import cache_dir
from fnll.system.files import make_folder, write_atomic
from fnll.system.marks import Mark

log = logging.getLogger(__name__)

AT_ONCE = 256  # files that one thread reads in one go


def content_of(source: Source, names: Sequence[str]) -> str:
    """A hash of the names and the content of files."""
    now = time.time_ns()  # before the files are looked at
    marks = dict(zip(names, source.marks(names), strict=True))
    doubtful = [name for name, mark in marks.items() if not mark.tells_changes(now)]
    digests = _read(source, doubtful)
    if len(digests) == len(marks):
        return combined(names, digests)
    seen = (os.path.realpath(source.place("")), *((name, digests.get(name, marks[name])) for name in names))
    note = cache_dir() / "contents" / _hash("\0".join(map(repr, seen)).encode())
    known = _remembered(note)
    if known is None:
        log.info("%s: reading %d files to tell what they hold", source.title, len(marks))
        known = combined(names, digests | _read(source, marks.keys() - digests.keys()))
        with suppress(OSError):  # a cache that cannot be written costs time only
            make_folder(note.parent)
            write_atomic(note, f"{known} {_check(note, known)}")
    return known


def combined(names: Sequence[str], digests: Mapping[str, str]) -> str:
    """One hash of the hashes of files."""
    return _hash("\0".join(f"{name}\0{digests[name]}" for name in names).encode())


@dataclass(frozen=True)
class Noted:
    """A source that notes what was read from it, so that pixels are never kept under another content's hash."""

    source: Source
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.source.title

    @property
    def advice(self) -> str:
        return self.source.advice

    def place(self, name: str) -> str:
        return self.source.place(name)

    def read(self, name: str) -> bytes:
        data = self.source.read(name)
        self.digests[name] = _hash(data)
        return data

    def marks(self, names: Iterable[str]) -> list[Mark]:
        return self.source.marks(names)

    def children(self, name: str) -> list[str]:
        return self.source.children(name)

    def require(self, names: Sequence[str], content: str) -> None:
        """Demand that what was read is what `content_of` found."""
        if combined(names, self.digests) != content:
            raise UserError(
                f"{self.title}: files in {self.place('')} changed while they were read; type the command again (if "
                f"nobody changed them, delete the folder {cache_dir() / 'contents'} first)"
            )


def _read(source: Source, names: Iterable[str]) -> dict[str, str]:
    names = list(names)
    parts = [names[i : i + AT_ONCE] for i in range(0, len(names), AT_ONCE)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        hashed = pool.map(lambda part: [_hash(source.read(name)) for name in part], parts)
        return dict(zip(names, chain.from_iterable(hashed), strict=True))


def _remembered(note: Path) -> str | None:
    try:
        content, check = note.read_text().split(" ")
    except (OSError, ValueError):
        return None
    return content if check == _check(note, content) else None


def _check(note: Path, content: str) -> str:
    return _hash(f"{note.name} {content}".encode())


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
