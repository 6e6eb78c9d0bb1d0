"""Who does the clients' work. Exact executors give bit-identical results; see docs/reproducibility.md."""

from fnll.executors.jobs import perform
from fnll.executors.pool import Pool
from fnll.executors.ray import Ray
from fnll.executors.serial import Serial

__all__ = ["Pool", "Ray", "Serial", "perform"]
