"""Garbage is looked for rarely while a command starts, and as ever afterwards."""

from __future__ import annotations

import gc

import pytest

from fnll.system.collecting import RARELY, collecting_rarely


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
