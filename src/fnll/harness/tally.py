"""What a method has told about samples and clients so far, summed up over rounds; it is saved with every checkpoint.

Any method is heard: jobs tell by `Update.trace["clean"]` and `Update.labels`, the server by `fed.record(noisy_clients=,
noise_levels=, agg_weights=)`. docs/metrics.md has the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fnll.federation import Clients
from fnll.harness.diagnostics import Round
from fnll.scenario.scenario import Scenario

SOFT = "targets"  # soft labels (n, C) that a method keeps under this name say how sure it is


class Tally:
    """How often each sample was judged and trained on, and what the server said last."""

    def __init__(self, scenario: Scenario, notes: Mapping[str, Any] | None = None) -> None:
        self.scenario = scenario
        notes = notes or {}
        self.judged: dict[int, int] = dict(notes.get("judged", {}))  # how many jobs of a client told
        self.selected: dict[int, Tensor] = dict(notes.get("selected", {}))  # how often each of its samples was chosen
        self.noisy: tuple[int, ...] | None = notes.get("noisy")
        self.levels: list[float] | None = notes.get("levels")
        self.shares: dict[int, tuple[float, int]] = dict(notes.get("shares", {}))  # sum of shares times cohort, rounds

    def notes(self) -> dict[str, Any]:
        """What a checkpoint keeps of it; nothing if nothing was told."""
        kept = {
            "judged": self.judged,
            "selected": self.selected,
            "noisy": self.noisy,
            "levels": self.levels,
            "shares": self.shares,
        }
        return {name: value for name, value in kept.items() if value not in (None, {})}

    def add(self, window: Sequence[Round]) -> None:
        """Hear the rounds since the last evaluation."""
        for done in window:
            for trace in done.ledger.traces:
                if "clean" in trace.values:
                    k, chosen = trace.client, trace.values["clean"].cpu().to(torch.int32)
                    before = self.selected.get(k)
                    self.selected = {**self.selected, k: chosen if before is None else before + chosen}
                    self.judged = {**self.judged, k: self.judged.get(k, 0) + 1}
            self._server(done.ledger.records)

    def _server(self, records: Mapping[str, Any]) -> None:
        if "noisy_clients" in records:
            self.noisy = tuple(sorted(int(k) for k in records["noisy_clients"]))
        if "noise_levels" in records:
            self.levels = [float(level) for level in np.asarray(records["noise_levels"], dtype=float)]
        shares = records.get("agg_weights")
        if isinstance(shares, Mapping) and shares:
            for k, share in shares.items():
                total, rounds = self.shares.get(int(k), (0.0, 0))
                self.shares = {**self.shares, int(k): (total + float(share) * len(shares), rounds + 1)}

    @property
    def selective(self) -> bool:
        """Whether any sample was ever left out."""
        return any(int(chosen.min()) < self.judged[k] for k, chosen in self.selected.items() if len(chosen))

    def rejected(self, k: int) -> np.ndarray:
        """The share of a client's jobs that did not take a sample for clean; 0 where none has told."""
        if k not in self.selected:
            return np.zeros(self.scenario.sizes[k])
        return 1 - self.selected[k].numpy() / self.judged[k]

    def suspicion(self, clients: Clients) -> np.ndarray | None:
        """How wrong the method takes every sample's observed label to be, in [0, 1]; NaN for nobody's samples.

        A changed label counts as wrong, as sure as kept soft labels say; else the share of jobs that left the sample
        out. None for a method that tells nothing about samples.
        """
        corrected = any(kept.labels is not None for kept in clients.values())
        if not corrected and not self.selective:
            return None
        wrong = np.full(len(self.scenario.labels), np.nan)
        for k, shard in enumerate(self.scenario.shards):
            observed, kept = self.scenario.labels[shard], clients.get(k)
            told = self.rejected(k)
            if kept is not None and kept.labels is not None:
                told = np.maximum(told, (kept.labels != observed).double().numpy())
                soft = next((value for name, value in kept.memory.items() if name.rpartition("/")[2] == SOFT), None)
                if isinstance(soft, Tensor) and soft.shape == (len(shard), self.scenario.num_classes):
                    told = 1 - soft.gather(1, observed[:, None])[:, 0].clamp(0, 1).double().numpy()
            wrong[shard.numpy()] = told
        return wrong


def labels_now(scenario: Scenario, clients: Clients) -> Tensor:
    """The labels of all samples as clients have them now."""
    labels = scenario.labels.clone()
    for k, kept in clients.items():
        if kept.labels is not None:
            labels[scenario.shards[k]] = kept.labels
    return labels
