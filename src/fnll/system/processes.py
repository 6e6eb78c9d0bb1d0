"""Processes of this machine. Nothing here needs torch, so that whoever only starts others need not wait for it."""

from __future__ import annotations

import os

GONE = (EOFError, BrokenPipeError, ConnectionResetError)  # what a pipe says when its other end has died


def usable_cores() -> int:
    """Cores that this process may run on: a batch system often gives it fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
