"""The only module that writes, cuts or removes files, so that nothing outside a command's folders is touched.

A run folder may come from somebody else, and a link in it may point anywhere. So names are plain, links are refused,
pipes and devices are not waited for, and a file that has a second name elsewhere is copied first. A kill leaves either
the old content or the new. `tests/unit/system/test_files_only.py` finds whoever goes around this module.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fnll.errors import UserError

if TYPE_CHECKING:
    import numpy as np

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # no dot, so neither `..` nor a hidden file
PARTIAL = re.compile(r"\..+\.[a-z0-9_]{8}\.partial")  # what `write_atomic` leaves behind if it is killed
UNSAFE = re.compile(r"[\x00-\x1f/\\]|^\.{0,2}$")  # in the name of one file or folder
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


def inside(root: Path, *names: str) -> Path:
    """The place `names` below `root`, if it is one: each is a single name, and no link on the way leads elsewhere."""
    path = root
    for name in names:
        if UNSAFE.search(name):
            raise LinkError(f"{name!r} is no name of something in {path}; nothing was written")
        path = path / name
        refuse_link(path)
    return path


def make_folder(path: Path) -> Path:
    """Make the folder `path` that the user named, and those above it; the user may have made it a link."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def own_folder(path: Path) -> Path:
    """Make the folder `path`, or take the one that is there; not a linked one."""
    refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def remove_folder(path: Path) -> None:
    """Remove the folder `path`, as far as the system lets us; not a linked one."""
    refuse_link(path)
    shutil.rmtree(path, ignore_errors=True)


def remove_file(path: Path) -> None:
    """Remove the file `path` if there is one; of a link, the link."""
    path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> None:
    """Remove the folder `folder` if nothing is in it, or in the folders in it."""
    with suppress(OSError):
        for inner in [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]:
            inner.rmdir()
        folder.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Remove what processes left in `folder` that were killed in `write_atomic`, and nothing else."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if PARTIAL.fullmatch(path.name) and not path.is_dir():
            remove_file(path)


def build_folder(folder: Path, build: Callable[[Path], None]) -> None:
    """Let `build` fill the folder `folder`, which appears whole or not at all; one that is there is replaced."""
    refuse_link(folder)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".unfinished", dir=folder.parent))
    try:
        build(unfinished)
        remove_folder(folder)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; others wait."""
    from filelock import FileLock

    refuse_link(path)
    with FileLock(path):
        yield


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder of the system's for temporary files, removed with the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def can_write(folder: Path) -> None:
    """Raise the OSError that writing to `folder` would raise; it is made if it is not there."""
    make_folder(folder)
    probe = inside(folder, f".probe-{os.getpid()}")
    open_own(probe, "w").close()
    remove_file(probe)


def append_line(path: Path, text: str) -> None:
    """Add one line to the file `path`."""
    with open_own(path, "a") as file:
        file.write(text + "\n")


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array as `.npy`."""
    import numpy as np

    with open_own(path, "wb") as file:
        np.save(file, array, allow_pickle=False)


def new_array(path: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of zeros that is the file `path`."""
    from numpy.lib.format import open_memmap

    refuse_link(path)
    return open_memmap(path, mode="w+", dtype=dtype, shape=shape)


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


def write_file(path: Path, content: bytes | str) -> None:
    """As `write_atomic`, for what can be made again: after a power cut the file may be empty."""
    write_atomic(path, content, durable=False)


def write_atomic(path: Path, content: bytes | str, *, durable: bool = True) -> None:
    """Replace `path` by `content` in one step; readers never see a part. A link there is replaced, not followed."""
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes files that nobody else could read
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            remove_file(Path(name))
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write `value` as readable JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n", durable=durable)


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    return json.loads(path.read_text())
