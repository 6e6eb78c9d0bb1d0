"""Why a method wins or fails: its decisions scored against the truth, for any method and out of its sight.

Jobs tell by `Update.trace` and `Update.labels`, the server by `fed.record`; docs/metrics.md lists the names. Nothing
here flows back to a method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from fnll.federation import Clients, Ledger, Trace
from fnll.harness.detectors import client_scores, sample_scores
from fnll.harness.plain import plain
from fnll.scenario.scenario import Scenario, Truth
from fnll.seeding import torch_rng

Row = dict[str, Any]

CONFUSION_ENTRIES = 100_000  # counts written each time labels change; a record is not a data set


class Round(NamedTuple):
    """One round of a method, as the evaluator sees it."""

    t: int  # rounds the method had done when it was over
    before: Clients
    ledger: Ledger
    after: Clients

    @property
    def stage(self) -> str:
        return str(self.ledger.records.get("stage", "train"))

    @property
    def relabelled(self) -> bool:
        return any(trace.labels is not None for trace in self.ledger.traces)


class Diagnostics:
    """Scores what one run's clients and server told, against the truth."""

    def __init__(
        self, scenario: Scenario, truth: Truth, *, samples: int, device: torch.device, shuffled: bool = False
    ) -> None:
        self.scenario, self.truth, self.device = scenario, truth, device
        self.clean = None if truth.labels is None else [truth.labels[shard] for shard in scenario.shards]
        self.probe = self._wrongly_labelled(samples, shuffled)

    def score(self, window: Sequence[Round]) -> Row:
        """Metrics of the rounds since the last evaluation; of what several of them recorded, the last counts."""
        if self.clean is None:
            return {}
        row = self._selection([(done.before, trace) for done in window for trace in done.ledger.traces])
        row |= self._correction(window[-1].after)
        for done in window:
            if "noisy_clients" in done.ledger.records:
                row |= detection(self.truth.noisy_clients, set(done.ledger.records["noisy_clients"]))
            if "noise_levels" in done.ledger.records:
                row |= self._levels(done.ledger.records["noise_levels"], done.before, done.after)
        return row

    def detectors(
        self, suspicion: np.ndarray | None, levels: Sequence[float] | None, noisy: Sequence[int] | None
    ) -> Row:
        """What the method has told so far, scored as a review list and as verdicts on clients."""
        if self.clean is None or self.truth.labels is None:
            return {}
        row: Row = {}
        if suspicion is not None:
            row |= sample_scores(suspicion, (self.scenario.labels != self.truth.labels).numpy())
        known = [float("nan")] * len(self.clean) if levels is None else levels
        called = np.isin(np.arange(len(self.clean)), noisy if noisy is not None else [])
        told = client_scores(known, called, self.truth.realised.numpy())
        kept = (("levels/rank", levels), ("find/accused", noisy))
        return row | {key: told[key] for key, given in kept if given is not None and key in told}

    def facts(self, window: Sequence[Round]) -> list[Row]:
        """What the server recorded, in JSON's types, and the state of the labels as each stage left them.

        A stage that changes labels in many rounds of one window is noted once: its last state is what figures show.
        """
        settled = {done.stage: done.t for done in window if done.relabelled}
        found: list[Row] = []
        for done in window:
            told = [(name, plain(value)) for name, value in done.ledger.records.items() if name != "stage"]
            if self.clean is not None:
                judged = [trace for trace in done.ledger.traces if "clean" in trace.values]
                told += [("sample_detection", self._samples(done.before, judged))] if judged else []
                told += self.labels(done.after) if settled.get(done.stage) == done.t else []
            found += [{"t": done.t, "stage": done.stage, "name": name, "value": value} for name, value in told]
        return found

    def labels(self, clients: Clients) -> list[tuple[str, Any]]:
        """The state of all labels: share of wrong ones per client, and their confusion with the true ones."""
        if self.clean is None:
            return []
        return [("per_client_noise", plain(self._remaining(clients))), ("confusion", self.confusion(clients))]

    def _samples(self, before: Clients, judged: list[Trace]) -> dict[str, list[int]]:
        """Per job that told clean samples from noisy ones: noisy ones found (tp), clean ones accused (fp), ..."""
        assert self.clean is not None
        counts: dict[str, list[int]] = {name: [] for name in ("client", "tp", "fp", "fn", "tn")}
        for trace in judged:
            wrong = self._labels(trace.client, before) != self.clean[trace.client]
            accused = ~trace.values["clean"].bool()
            (tn, fp), (fn, tp) = pair_counts(wrong.long(), accused.long(), 2)
            for name, count in zip(counts, (trace.client, tp, fp, fn, tn), strict=True):
                counts[name].append(count)
        return counts

    def confusion(self, clients: Clients) -> Any:
        """Counts (true class, label now) per client, (clients, C, C); their sum, (1, C, C), if that is too much."""
        assert self.clean is not None
        classes = self.scenario.num_classes
        pairs = [(true, self._labels(k, clients)) for k, true in enumerate(self.clean)]
        if len(pairs) * classes**2 > CONFUSION_ENTRIES:
            pairs = [(torch.cat([true for true, _ in pairs]), torch.cat([now for _, now in pairs]))]
        return [pair_counts(true, now, classes) if len(true) else [] for true, now in pairs]

    @torch.inference_mode()
    def memorisation(self, model: nn.Module) -> Row:
        """How a model answers on wrongly labelled training images: with the wrong label, or with the true one."""
        if self.probe is None or not len(self.probe):
            return {}
        assert self.truth.labels is not None
        model = model.to(self.device).eval()
        pixels = self.scenario.images.take(self.probe)
        parts = [
            model(self.scenario.transform.plain(part.to(self.device))).argmax(1).cpu() for part in pixels.split(500)
        ]
        answers = torch.cat(parts)
        return {
            "memory/wrong": _mean(answers == self.scenario.labels[self.probe]),
            "memory/true": _mean(answers == self.truth.labels[self.probe]),
        }

    def _wrongly_labelled(self, limit: int, shuffled: bool) -> Tensor | None:
        """A fixed sub-sample of the training images whose observed label is wrong; `shuffled`: in random order."""
        if self.truth.labels is None:
            return None
        owned = torch.cat(self.scenario.shards)
        wrong = owned[self.scenario.labels[owned] != self.truth.labels[owned]]
        order = torch.randperm(len(wrong), generator=torch_rng("memorisation", self.scenario.fingerprint))
        chosen = wrong[order[:limit]]
        return chosen if shuffled else chosen.sort().values

    def _labels(self, k: int, clients: Clients) -> Tensor:
        """The labels client `k` trains on now."""
        kept = clients.get(k)
        corrected = None if kept is None else kept.labels
        return self.scenario.labels[self.scenario.shards[k]] if corrected is None else corrected

    def _remaining(self, clients: Clients) -> Tensor:
        assert self.clean is not None
        return torch.tensor([_mean(self._labels(k, clients) != true) for k, true in enumerate(self.clean)])

    def _selection(self, traces: list[tuple[Clients, Trace]]) -> Row:
        """Label precision and recall (FedRN section 5.3), per participation, averaged."""
        assert self.clean is not None
        pairs = []
        for before, trace in traces:
            if "clean" not in trace.values:
                continue
            right = self._labels(trace.client, before) == self.clean[trace.client]
            pairs.append(precision_recall(trace.values["clean"].bool(), right))
        if not pairs:
            return {}
        return {f"select/{name}": float(np.mean([pair[i] for pair in pairs])) for i, name in enumerate(_PAIR)}

    def _correction(self, clients: Clients) -> Row:
        """Labels fixed, broken and still wrong, as shares of all samples; only once something was corrected."""
        assert self.clean is not None
        if not any(kept.labels is not None for kept in clients.values()):
            return {}
        total = sum(len(true) for true in self.clean)
        fixed = broken = left = 0
        for k, true in enumerate(self.clean):
            before, now = self.scenario.labels[self.scenario.shards[k]] == true, self._labels(k, clients) == true
            fixed += int((~before & now).sum())
            broken += int((before & ~now).sum())
            left += int((~before & ~now).sum())
        shares = {"fixed": fixed, "broken": broken, "left": left, "noise": broken + left}
        return {f"labels/{name}": count / total for name, count in shares.items()}

    def _levels(self, estimated: Any, before: Clients, now: Clients) -> Row:
        """Mean absolute error of estimated noise levels: of the labels they were estimated on, and of those after."""
        estimate = torch.as_tensor(np.asarray(estimated, dtype=float))
        known = estimate.isfinite()  # a method may have no estimate for some clients
        return {
            "levels/error": _mean((estimate - self._remaining(before)).abs()[known]),
            "levels/error_after": _mean((estimate - self._remaining(now)).abs()[known]),
        }


_PAIR = ("precision", "recall")


def pair_counts(rows: Tensor, columns: Tensor, classes: int) -> list[list[int]]:
    """How often each pair of classes occurs; scikit-learn's confusion matrix takes a hundred times as long over few."""
    counts = torch.bincount(rows * classes + columns, minlength=classes**2).view(classes, classes)
    return cast(list[list[int]], counts.tolist())


def precision_recall(chosen: Tensor, right: Tensor) -> tuple[float, float]:
    """Share of the chosen that are right, and of the right that were chosen; empty denominators count as one."""
    hits = int((chosen & right).sum())
    return hits / max(1, int(chosen.sum())), hits / max(1, int(right.sum()))


def detection(truth: set[int], found: set[int]) -> Row:
    """Noisy-client detection: recall, precision, F1 and exact match (FedNoRo table 3)."""
    hits = len(truth & found)
    recall = hits / len(truth) if truth else 1.0
    precision = hits / len(found) if found else float(not truth)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {
        "detect/recall": recall,
        "detect/precision": precision,
        "detect/f1": f1,
        "detect/exact": float(truth == found),
    }


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else 0.0
