"""Shared by all tests: fnll before lightning (see fnll.torchvision_compat), one torch thread, a cache of our own."""

import fnll  # noqa: F401  isort: skip

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FNLL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
