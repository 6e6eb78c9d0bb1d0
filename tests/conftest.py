"""Shared by all tests: fnll before lightning (fnll.system.torchvision_compat says why), one thread, a cache."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: every worker and every child has one core to itself

import fnll  # noqa: F401  isort: skip

import logging
import multiprocessing
from multiprocessing import forkserver

import pytest
import torch

from fnll.harness import trust

# What any child of a test needs: importing torch, Lightning and scikit-learn once takes longer than most tests.
PRELOAD = [
    "fnll.testing",
    "fnll.cli.check",
    "fnll.cli.methods",
    "fnll.cli.run",
    "fnll.cli.progress",
    "fnll.sweep.runner",
]


@pytest.fixture(autouse=True)
def nobody_is_trusted(monkeypatch):
    """`--allow NAME` counts for the rest of a process, which here goes on with other tests."""
    monkeypatch.setattr(trust, "_allowed", set())


@pytest.fixture(autouse=True)
def warnings_are_warnings():
    """`fnll run` hands Python's warnings to the log for the rest of its process."""
    yield
    logging.captureWarnings(False)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FNLL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def fork_server(own_cache):
    """The process that pools, sweeps and `fnll` fork from, with more imported than any of these asks for."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()
