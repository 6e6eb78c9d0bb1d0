"""Clients as the data have them: hospital sites, annotators, devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fnll.errors import UserError
from fnll.scenario.scenario import Dataset

ADVICE = (
    "partition=given takes clients from the data: type dataset=table with a column client, or dataset=image_folder "
    "with train/<client>/<class>/*"
)


@dataclass(frozen=True)
class Given:
    """The clients that the data name, in the order of their names. Nothing is drawn, so no seed matters."""

    def __call__(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """Labels alone do not say whose they are."""
        raise UserError(ADVICE)

    def given(self, dataset: Dataset) -> list[np.ndarray]:
        if dataset.owners is None:
            raise UserError(f"{dataset.name} names no clients. {ADVICE}")
        owners = dataset.owners.numpy()
        return [np.flatnonzero(owners == k) for k in range(len(dataset.client_names))]
