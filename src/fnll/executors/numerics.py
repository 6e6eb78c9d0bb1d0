"""Process-wide settings that can change results: exact executors make them equal in every process that works."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.utils.deterministic
from threadpoolctl import ThreadpoolController


def limit_threads(threads: int) -> None:
    """Let torch, BLAS and OpenMP use so many threads in this process: the order of their sums depends on the number."""
    torch.set_num_threads(threads)
    _libraries(len(sys.modules)).limit(limits=threads)


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """The libraries that this process has loaded: looked for again, which takes milliseconds, after further imports."""
    return ThreadpoolController()


def set_deterministic(mode: int | str) -> None:
    """torch's debug mode: kernels that repeat (0 off, 1 "warn" where there is none, 2 "error").

    As torch.use_deterministic_algorithms, without its slow import of the compiler, and without its filling of all new
    memory with NaN, which shows kernels that read before they write and costs a small network's step a twelfth.
    """
    torch.set_deterministic_debug_mode(mode)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Numerics:
    """torch's switches, to be read in one process and set in another."""

    dtype: torch.dtype
    deterministic: int  # torch's debug mode: 0 off, 1 warn, 2 raise
    matmul_precision: str
    cudnn_deterministic: bool
    cudnn_benchmark: bool

    @classmethod
    def of_this_process(cls) -> Numerics:
        return cls(
            dtype=torch.get_default_dtype(),
            deterministic=torch.get_deterministic_debug_mode(),
            matmul_precision=torch.get_float32_matmul_precision(),
            cudnn_deterministic=torch.backends.cudnn.deterministic,
            cudnn_benchmark=torch.backends.cudnn.benchmark,
        )

    def apply(self) -> None:
        torch.set_default_dtype(self.dtype)
        set_deterministic(self.deterministic)
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.backends.cudnn.benchmark = self.cudnn_benchmark


@dataclass(frozen=True)
class Setup:
    """What a process must be told before it does clients' work."""

    device: torch.device
    threads: int
    numerics: Numerics

    def apply(self) -> None:
        for library in ("OMP", "OPENBLAS", "MKL"):  # for what a job may import later
            os.environ[f"{library}_NUM_THREADS"] = str(self.threads)
        limit_threads(self.threads)
        self.numerics.apply()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
