"""Scenarios: a data set, split over clients, with noisy labels."""

from fnll.scenario.build import assemble, build
from fnll.scenario.scenario import Dataset, Noise, NoisyLabels, Partition, Scenario, Truth, fingerprint

__all__ = [
    "Dataset",
    "Noise",
    "NoisyLabels",
    "Partition",
    "Scenario",
    "Truth",
    "assemble",
    "build",
    "fingerprint",
]
