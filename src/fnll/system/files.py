"""Writing files so that a kill leaves either the old content or the new, and so that nothing outside a run is touched.

A run folder may come from somebody else, and a link in it may point anywhere. Whatever is written, cut or removed below
one goes through here: names are plain, links are refused, and a file that has a second name elsewhere is copied first.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from fnll.errors import UserError

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # no dot, so neither `..` nor a hidden file
NO_PLAIN_FILE = {errno.ELOOP, errno.EMLINK, errno.ENXIO}  # of a link, and of a pipe that nobody reads


class LinkError(UserError):
    """Something in a run folder leads out of it, or is not what a run puts there."""


def plain_name(key: str, value: object, advice: str, taken: Collection[str] = ()) -> str:
    """`value`, if it can only be the name of something directly below a folder; `taken` are names in use there."""
    if not (isinstance(value, str) and PLAIN.fullmatch(value)):
        raise UserError(
            f"{key} must be one plain name (up to 64 letters a to z, digits, - and _), got {value!r}; {advice}"
        )
    if value.casefold() in taken:  # some file systems do not tell capitals apart
        raise UserError(f"{key}={value} is taken already in the run's folder; {advice}")
    return value


def refuse_link(path: Path) -> None:
    """Raise an error if `path` is a link; what it points to is not looked at."""
    if os.path.islink(path):
        raise LinkError(
            f"{path} is a link (to {os.readlink(path)}), and a run writes to its own folder only; delete the link, or "
            "put what it points to in its place"
        )


def refuse_links_out(folder: Path) -> None:
    """Raise an error if `folder` is a link, or if something directly in it is a link that leads out of it."""
    refuse_link(folder)
    home = os.path.realpath(folder)
    for path in folder.iterdir() if folder.is_dir() else ():
        if not Path(os.path.realpath(path)).is_relative_to(home):
            refuse_link(path)


def own_folder(path: Path) -> Path:
    """Make the folder `path`, or take the one that is there; not a linked one."""
    refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def remove_folder(path: Path) -> None:
    """Remove the folder `path`, as far as the system lets us; not a linked one."""
    refuse_link(path)
    shutil.rmtree(path, ignore_errors=True)


def open_own(path: Path, mode: str) -> IO[Any]:
    """Open the file `path` itself: a link or a pipe in its place is an error, and is left as it is."""
    return open(path, mode, opener=_open_itself)


def cut_back(path: Path, length: int) -> None:
    """Cut the file `path` to its first `length` bytes."""
    with open_own(path, "r+b") as file:
        if os.fstat(file.fileno()).st_nlink == 1:
            file.truncate(length)
            return
        head = file.read(length)
    write_atomic(path, head)  # a copy: under its other names, as in a backup of hard links, it must stay as it is


def _open_itself(name: str, flags: int) -> int:
    try:
        handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # not waiting for a pipe's other end
    except OSError as error:
        if error.errno in NO_PLAIN_FILE:
            refuse_link(Path(name))
            raise _no_file(name) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_file(name)
    return handle


def _no_file(name: str) -> LinkError:
    return LinkError(f"{name} is no plain file, which a run needs there; delete it and type the command again")


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content` in one step; readers never see a part. A link there is replaced, not followed."""
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes files that nobody else could read
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    return json.loads(path.read_text())
