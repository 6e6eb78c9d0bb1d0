"""Memory that is freed and asked for again should not go through the kernel each time."""

from __future__ import annotations

import ctypes
import functools

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for them, from malloc.h
LARGE = 1 << 25  # bytes from which a block gets pages of its own: the largest value that glibc takes
SPARE = 1 << 28  # freed bytes that stay with the process


@functools.cache
def keep_freed_memory() -> bool:
    """Let glibc keep what is freed, once per process; False where there is another C library.

    Training frees and allocates blocks of the same megabytes over and over: an epoch's images, the activations of a
    stacked cohort. By default they go back to the kernel, which hands them out again as zeroed pages, fault by fault:
    half of the time that augmentation takes, and a tenth of a cohort's training.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGE)) and bool(mallopt(TRIM_THRESHOLD, SPARE))
