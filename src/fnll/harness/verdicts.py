"""The end of a run for people with noisy data: which clients, which samples, which labels; for every method.

A method that selects or corrects speaks for itself (`Tally`); where one says nothing about samples, confident learning
on the final model's features, cross-validated, gives a neutral verdict, and `source` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from fnll.federation import Snapshot
from fnll.harness.confident import answers, confident, cross_validated
from fnll.harness.detectors import CALLED_NOISY, correction_scores, harm, in_words
from fnll.harness.prepare import Run
from fnll.harness.tally import Tally, labels_now
from fnll.scenario.datasets.own_rows import guarded
from fnll.scenario.scenario import UNKNOWN

METHOD = "the method"
NEUTRAL = "confident learning on cross-validated probes of the final model"
LIKELY = 0.5  # a label with a higher probability of being wrong gets a suggestion


@dataclass(frozen=True)
class Verdict:
    """What a run says about every training sample that a client holds, and about the clients."""

    source: str  # who judged the samples
    index: np.ndarray  # positions in the training set, client by client
    owner: np.ndarray  # the client of each
    label: np.ndarray  # as observed
    suggested: np.ndarray
    p_wrong: np.ndarray
    loss: np.ndarray  # of the final model, on the observed label
    selected: np.ndarray  # share of the client's jobs that trained on it; NaN where the method does not select
    levels: np.ndarray  # (clients,) estimated share of wrong labels
    noisy: np.ndarray  # (clients,) bool
    evidence: tuple[str, ...]  # (clients,)

    @property
    def rank(self) -> np.ndarray:
        """Places in the review list from 1: the likeliest wrong first, then the largest loss."""
        order = np.lexsort((self.index, -self.loss, -self.p_wrong))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(1, len(order) + 1)
        return rank

    @property
    def suspicion(self) -> np.ndarray:
        """A score in the order of the review list: for curves, where `p_wrong` has many ties."""
        return -self.rank.astype(float)


def judge(run: Run, last: Snapshot, tally: Tally) -> Verdict:
    """The verdict of a finished run."""
    scenario = run.scenario
    index = torch.cat(scenario.shards)
    owner = np.repeat(np.arange(len(scenario.shards)), scenario.sizes)
    observed = scenario.labels[index]
    logits, features = answers(run.method.model(last.state), scenario, index, run.device)
    loss = F.cross_entropy(logits, observed, reduction="none").nan_to_num(nan=0.0, posinf=1e6).double().numpy()
    label, position = observed.numpy(), index.numpy()
    told = tally.suspicion(last.clients)
    if told is None:
        found = confident(label, cross_validated(features.double().nan_to_num().numpy(), label, scenario.num_classes))
        source, p_wrong, suggested, likely = NEUTRAL, found.wrong, found.suggested, found.issue
    else:
        source, p_wrong = METHOD, told[position]
        likely = p_wrong > LIKELY
        suggested = _suggestions(run, last, logits.argmax(1).numpy(), label, position, likely)
    levels = np.array(
        [likely[owner == k].mean() if (owner == k).any() else np.nan for k in range(len(scenario.shards))]
    )
    noisy = levels > CALLED_NOISY
    if tally.levels is not None:
        levels = np.where(np.isfinite(tally.levels), tally.levels, levels)
    if tally.noisy is not None:
        noisy = np.isin(np.arange(len(levels)), tally.noisy)
    chosen = [
        1 - tally.rejected(k) if k in tally.selected else np.full(n, np.nan) for k, n in enumerate(scenario.sizes)
    ]
    return Verdict(
        source,
        position,
        owner,
        label,
        suggested,
        p_wrong,
        loss,
        np.concatenate(chosen) if tally.selective else np.full(len(label), np.nan),
        levels,
        noisy,
        tuple(_evidence(k, tally, source, run) for k in range(len(levels))),
    )


def _suggestions(
    run: Run, last: Snapshot, answer: np.ndarray, label: np.ndarray, position: np.ndarray, likely: np.ndarray
) -> np.ndarray:
    """The method's own labels if it corrects any, else the final model's answer for what is likely wrong."""
    if any(kept.labels is not None for kept in last.clients.values()):
        return labels_now(run.scenario, last.clients).numpy()[position]
    return np.where(likely, answer, label)


def _evidence(k: int, tally: Tally, source: str, run: Run) -> str:
    said = []
    if tally.noisy is not None:
        said.append(f"the server calls it {'noisy' if k in tally.noisy else 'clean'}")
    if tally.levels is not None:
        said.append("level estimated by the method")
    else:
        said.append(f"level: share of samples judged wrong by {source}")
    if k in tally.shares:
        total, rounds = tally.shares[k]
        said.append(f"weight in the average {total / rounds:.2f} of an equal share")
    if run.truth.reviewed is not None:
        known = run.truth.reviewed[run.scenario.shards[k]]
        wrong = (known != run.scenario.labels[run.scenario.shards[k]])[known != UNKNOWN]
        said.append(f"{int(wrong.sum())} of {len(wrong)} reviewed labels are wrong")
    return "; ".join(said)


def clients_table(run: Run, verdict: Verdict) -> pd.DataFrame:
    """clients.csv: one row per client."""
    scenario = run.scenario
    return pd.DataFrame(
        {
            "client": [guarded(scenario.called(k)) for k in range(len(scenario.shards))],
            "size": scenario.sizes,
            "noise_level": verdict.levels.round(4),
            "noisy": verdict.noisy,
            "evidence": verdict.evidence,
        }
    )


def samples_table(run: Run, verdict: Verdict) -> pd.DataFrame:
    """samples.csv: one row per sample that a client holds, the likeliest wrong first."""
    scenario, names = run.scenario, run.dataset.class_names or tuple(map(str, range(run.scenario.num_classes)))
    files = run.dataset.names or tuple(map(str, range(len(scenario.labels))))
    table = pd.DataFrame(
        {
            "file": [guarded(files[i]) for i in verdict.index],
            "client": [guarded(scenario.called(k)) for k in verdict.owner],
            "label": [guarded(names[c]) for c in verdict.label],
            "suggested": [guarded(names[c]) for c in verdict.suggested],
            "p_wrong": verdict.p_wrong.round(4),
            "loss": verdict.loss.round(4),
            "selected": verdict.selected.round(4),
            "rank": verdict.rank,
        }
    )
    return table.sort_values("rank", ignore_index=True)


def on_reviewed(run: Run, verdict: Verdict) -> dict[str, int] | None:
    """What the suggested labels would do to the labels whose truth is known; None if none is."""
    known = run.truth.labels if run.truth.labels is not None else run.truth.reviewed
    return None if known is None else correction_scores(verdict.label, verdict.suggested, known.numpy()[verdict.index])


def doubt(run: Run, verdict: Verdict) -> str | None:
    """Why the suggested labels should not be taken: on labels whose truth is known they do harm."""
    known = run.truth.labels if run.truth.labels is not None else run.truth.reviewed
    if known is None:
        return None
    found = harm(verdict.label, verdict.suggested, known.numpy()[verdict.index], verdict.owner)
    return in_words(found, run.scenario.called)
