"""Every data set of the benchmark: plain functions that return a `Dataset`, one per `configs/dataset/*.yaml`."""

from fnll.scenario.datasets.embedded import digits, synthetic

__all__ = ["digits", "synthetic"]
