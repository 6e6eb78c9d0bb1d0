"""Garbage is looked for rarely while a command starts, and as ever afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from fnll.system.collecting import RARELY, collecting_rarely, sparing_what_is_there


def test_only_the_block_collects_rarely() -> None:
    before = gc.get_threshold()
    with collecting_rarely():
        assert gc.get_threshold() == (RARELY, *before[1:])
        assert gc.isenabled()
    assert gc.get_threshold() == before


def test_a_mistake_leaves_nothing_changed() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="mistake"), collecting_rarely():
        raise ValueError("mistake")
    assert gc.get_threshold() == before


class Knot:
    """Refers to itself, so that only a look for garbage finds it."""

    def __init__(self) -> None:
        self.me = self


def test_training_spares_what_was_there_and_collects_its_own() -> None:
    gc.collect()
    with sparing_what_is_there():
        assert gc.get_freeze_count() > 0
        assert not gc.get_objects(generation=2)
        seen = weakref.ref(Knot())
        gc.collect()
        assert seen() is None
    assert gc.get_freeze_count() == 0


def test_a_command_ends_without_looking_for_garbage() -> None:
    look = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0)); import fnll.cli"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
