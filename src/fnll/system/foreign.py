"""Reading files that somebody else may have written: a pipe, a device or an endless file is no trap.

Whatever is wrong with a file, `read` and what builds on it raise `ForeignError` with the reason, or an OSError.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

LIMIT = 1 << 30  # bytes of a file that is read as a whole
SETTINGS_LIMIT = 1 << 20  # bytes of a file of settings
MOST_NODES = 100_000  # of a tree of settings; aliases make a small file a huge tree


class ForeignError(ValueError):
    """A file is not what a run puts there."""


def read(path: Path, limit: int = LIMIT) -> bytes:
    """The content of a plain file of at most `limit` bytes; a link may lead to it."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # not waiting for a pipe's other end
    with open(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise ForeignError(f"{path.name} is no plain file")
        if facts.st_size > limit:
            raise ForeignError(f"{path.name} is too large ({facts.st_size} bytes)")
        return file.read(facts.st_size)


def text(path: Path, limit: int = LIMIT) -> str:
    """The content of a plain file of text."""
    try:
        return read(path, limit).decode()
    except UnicodeDecodeError as error:
        raise ForeignError(f"{path.name} is no text ({error.reason} at byte {error.start})") from None


def json_of(content: str | bytes, name: str) -> Any:
    """What JSON says; `name` is what messages call it."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ForeignError(f"{name} is nested too deeply") from None
    except ValueError as error:
        raise ForeignError(f"{name} is no JSON ({error})") from None


def json_object(path: Path, limit: int = LIMIT) -> dict[str, Any]:
    """A file that is one JSON object."""
    found = json_of(text(path, limit), path.name)
    if not isinstance(found, dict):
        raise ForeignError(f"{path.name} is no JSON object")
    return found


def yaml_mapping(path: Path) -> dict[str, Any]:
    """A file that is one YAML mapping of plain values; `!!python` and the like are errors."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C: ten times faster on a thousand configs
    content = text(path, SETTINGS_LIMIT)
    if content.count("[") + content.count("{") > MOST_NODES // 10:  # nested ones would exhaust the parser's stack
        raise ForeignError(f"{path.name} is nested too deeply")
    try:
        found = yaml.load(content, Loader=loader)
        _require_finite_tree(found, path.name)
    except (yaml.YAMLError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ForeignError(f"{path.name} is no YAML ({first})") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ForeignError(f"{path.name} is no YAML mapping")
    return found


def _require_finite_tree(node: object, name: str) -> None:
    """Refuse a tree that aliases have made huge or endless."""
    left, stack = MOST_NODES, [node]
    while stack:
        left -= 1
        if left < 0:
            raise ForeignError(f"{name} unfolds to more than {MOST_NODES} values")
        node = stack.pop()
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def digest(content: bytes) -> str:
    """A hash of some bytes, 32 hex digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def file_digest(path: Path, length: int | None = None) -> tuple[int, str]:
    """Number and hash of the bytes of a plain file, or of its first `length`; read in parts, whatever its size."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ForeignError(f"{path.name} is no plain file")
        running, left, seen = hashlib.blake2b(digest_size=16), length, 0
        while part := file.read(1 << 20 if left is None else min(1 << 20, left)):
            running.update(part)
            seen += len(part)
            left = None if left is None else left - len(part)
        return seen, running.hexdigest()
