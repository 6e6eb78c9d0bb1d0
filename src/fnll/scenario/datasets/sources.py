"""Where the files of a data set come from: a folder, or a zip archive as it was downloaded.

Every message about a file says what is missing, where it was looked for and how to get it.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from fnll.errors import UserError
from fnll.system.foreign import ForeignError, read
from fnll.system.marks import Mark

ENDLESS = 1 << 50  # bytes: data may be large


class Source(Protocol):
    """Files below one root, named by their path from there with forward slashes."""

    @property
    def title(self) -> str: ...  # of the data set, for messages

    @property
    def advice(self) -> str: ...  # how to get what is missing

    def place(self, name: str) -> str: ...  # a name that a person can look up

    def read(self, name: str) -> bytes: ...

    def marks(self, names: Iterable[str]) -> list[Mark]: ...

    def children(self, name: str) -> list[str]: ...  # what a folder holds, in order; nothing if there is no such folder


@dataclass(frozen=True)
class Folder:
    """Files on disk."""

    root: str
    title: str
    advice: str

    @classmethod
    def at(cls, root: str, title: str, advice: str) -> Folder:
        """The folder a user named, as an absolute path: messages must say where files were looked for."""
        return cls(str(Path(root).expanduser().absolute()), title, advice)

    def place(self, name: str) -> str:
        return os.path.join(self.root, name)

    def read(self, name: str) -> bytes:
        try:
            return read(Path(self.place(name)), ENDLESS)
        except (OSError, ForeignError) as error:  # what is no plain file, a pipe for one, would never end
            raise missing(self, [name], reason=getattr(error, "strerror", None) or str(error)) from error

    def marks(self, names: Iterable[str]) -> list[Mark]:
        found: list[Mark] = []
        absent: list[str] = []
        for name in names:
            try:
                found.append(Mark.of(self.root + os.sep + name))
            except OSError:
                absent.append(name)
        if absent:
            raise missing(self, absent)
        return found

    def children(self, name: str) -> list[str]:
        path = self.place(name)
        return sorted(entry for entry in os.listdir(path) if entry[0] != ".") if os.path.isdir(path) else []

    def has(self, name: str) -> bool:
        return os.path.exists(self.place(name))

    def require(self, names: Sequence[str]) -> None:
        """Demand that all of `names` exist, and name every one that does not."""
        absent = [name for name in names if not self.has(name)]
        if absent:
            raise missing(self, absent)


@dataclass(frozen=True)
class Archive:
    """Files inside a zip archive, read in place."""

    path: str
    title: str
    advice: str
    _handles: dict[int, zipfile.ZipFile] = field(default_factory=dict, repr=False, compare=False)

    def place(self, name: str) -> str:
        return f"{self.path}:{name}"

    def read(self, name: str) -> bytes:
        try:
            return self._zip().read(name)
        except (KeyError, OSError, zipfile.BadZipFile) as error:
            raise missing(self, [name], reason=str(error)) from error

    def marks(self, names: Iterable[str]) -> list[Mark]:
        opened = self._zip().fp
        assert opened is not None  # it is never closed
        whole = Mark.of(opened.fileno())  # not the checksums inside, which are easily forged
        return [whole for _ in names]

    def children(self, name: str) -> list[str]:
        return self._tree.get(name.strip("/"), [])

    def _zip(self) -> zipfile.ZipFile:
        """The open archive; a forked process opens its own, because the two would move one file position."""
        if os.getpid() not in self._handles:
            try:
                self._handles[os.getpid()] = zipfile.ZipFile(self.path)
            except (OSError, zipfile.BadZipFile) as error:
                reason = f"is not a readable zip file ({error})"
                raise UserError(f"{self.title}: {self.path} {reason}; {self.advice}") from error
        return self._handles[os.getpid()]

    @cached_property
    def _tree(self) -> dict[str, list[str]]:
        tree: dict[str, set[str]] = {}
        for name in self._zip().namelist():
            parts = name.strip("/").split("/")
            for depth, part in enumerate(parts):
                if not part.startswith("."):
                    tree.setdefault("/".join(parts[:depth]), set()).add(part)
        return {folder: sorted(entries) for folder, entries in tree.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "title": self.title, "advice": self.advice, "_handles": {}}


def missing(source: Source, names: Sequence[str], reason: str = "no such file") -> UserError:
    """An error that names what is missing (all of it, or the first three) and how to get it."""
    shown = ", ".join(source.place(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return UserError(f"{source.title}: {shown}{more} cannot be read ({reason}); {source.advice}")


def source_at(root: str, title: str, advice: str) -> Source:
    """The folder or the zip file at `root`."""
    path = Path(root).expanduser().absolute()
    if path.is_dir():
        return Folder(str(path), title, advice)
    if path.suffix == ".zip" and path.is_file():
        return Archive(str(path), title, advice)
    raise UserError(f"{title}: there is no folder or zip file {path} (dataset.root={root}); {advice}")
