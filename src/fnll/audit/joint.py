"""The panel's joint verdict on clients and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from scipy.stats import t as student

from fnll.audit.panel import Member
from fnll.harness.detectors import CALLED_NOISY, correction_scores, harm, in_words
from fnll.harness.prepare import Run
from fnll.scenario.datasets.own_rows import guarded
from fnll.scenario.scenario import UNKNOWN

WEAK = 0.6  # agreement with held-out labels below which models may know too little; CIFAR-10N's had 0.25 to 0.46


@dataclass(frozen=True)
class Joint:
    """Of samples the mean over the members that judge samples, of clients the median over all members."""

    run: Run
    members: tuple[Member, ...]

    @cached_property
    def judges(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.judges_samples)

    @cached_property
    def observed(self) -> np.ndarray:
        return self.run.scenario.labels.numpy()

    @cached_property
    def judged(self) -> np.ndarray:
        """Positions of the samples that at least one member judged."""
        return np.flatnonzero(np.isfinite(self._matrix).any(0))

    @cached_property
    def _matrix(self) -> np.ndarray:
        return np.stack([member.p_wrong for member in self.judges])

    @cached_property
    def p_wrong(self) -> np.ndarray:
        """(n,) the mean of the members' probabilities."""
        known = np.isfinite(self._matrix)
        return np.where(known.any(0), np.nansum(self._matrix, 0) / np.maximum(known.sum(0), 1), np.nan)

    @cached_property
    def votes(self) -> np.ndarray:
        """(n,) how many members take the label for wrong."""
        return np.sum([member.likely for member in self.judges], axis=0)

    @cached_property
    def suggested(self) -> np.ndarray:
        """(n,) what most members suggest for a label that is likely wrong; the observed one otherwise."""
        ballots = np.zeros((len(self.observed), self.run.scenario.num_classes))
        rows = np.arange(len(self.observed))
        for member in self.judges:
            ballots[rows, member.suggested] += member.suggested != self.observed
        likely = (np.nan_to_num(self.p_wrong) > 0.5) & ballots.any(1)
        return np.where(likely, ballots.argmax(1), self.observed)

    @cached_property
    def order(self) -> np.ndarray:
        """Positions in the order of the review list."""
        judged = self.judged
        return judged[np.lexsort((judged, -self.votes[judged], -self.p_wrong[judged]))]

    @cached_property
    def levels(self) -> np.ndarray:
        """(folds, clients) the median over members of the estimated noise levels: one that is far off does no harm."""
        return np.nanmedian([member.levels for member in self.members], axis=0)

    def interval(self, k: int) -> tuple[float, float, float]:
        """A client's noise level with its 95 % t interval over folds, each of which has a seed of its own."""
        values = self.levels[:, k][np.isfinite(self.levels[:, k])]
        if not len(values):
            return np.nan, np.nan, np.nan
        mean, spread = float(values.mean()), 0.0
        if len(values) > 1:
            spread = float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
        return mean, max(0.0, mean - spread), min(1.0, mean + spread)

    def noisy(self, k: int) -> bool:
        """More than a tenth of the labels taken for wrong, and most members agree."""
        return bool(self.interval(k)[0] > CALLED_NOISY and np.mean([m.noisy[k] > 0.5 for m in self.members]) > 0.5)

    def agreement(self) -> list[tuple[str, str, float, float]]:
        """Pairs of members: rank correlation of their lists, and overlap (Jaccard) of what they take for wrong."""
        found = []
        for i, one in enumerate(self.judges):
            for other in self.judges[i + 1 :]:
                both = np.isfinite(one.p_wrong) & np.isfinite(other.p_wrong)
                a, b = one.p_wrong[both], other.p_wrong[both]
                alike = float(spearmanr(a, b).statistic) if len(a) > 2 and np.ptp(a) and np.ptp(b) else np.nan
                union = (one.likely | other.likely)[both].sum()
                shared = float((one.likely & other.likely)[both].sum() / union) if union else np.nan
                found.append((one.name, other.name, alike, shared))
        return found

    def reviewed(self) -> dict[str, int] | None:
        """What the suggestions would do to the labels that somebody reviewed."""
        known = self.run.dataset.reviewed
        return None if known is None else correction_scores(self.observed, self.suggested, known.numpy())

    def doubt(self) -> str | None:
        """Why the suggestions should not be taken, as far as a review tells."""
        known, owners = self.run.dataset.reviewed, self.run.dataset.owners
        if known is None or owners is None:
            return None
        return in_words(harm(self.observed, self.suggested, known.numpy(), owners.numpy()), self.run.scenario.called)

    def weakness(self) -> str | None:
        """Why the numbers are to be taken with care: models that know too little call right labels wrong."""
        agreement = max(float(np.nanmean(member.held_out)) for member in self.members)
        if agreement >= WEAK:
            return None
        return (
            f"the best member agrees with {agreement:.0%} of the held-out labels: either that many labels are wrong, "
            "or its models have learnt too little of these data, and then noise levels are far too high and most "
            "suggestions wrong; the order of the list is worth more than its numbers (type a larger --minutes, or "
            "--size for finer images)"
        )

    def clients_table(self) -> pd.DataFrame:
        """clients.csv."""
        rows = []
        owners = self.run.dataset.owners
        assert owners is not None
        for k in range(len(self.run.scenario.shards)):
            level, low, high = self.interval(k)
            rows.append(
                {
                    "client": guarded(self.run.scenario.called(k)),
                    "size": int((owners == k).sum()),
                    "noise_level": round(level, 4),
                    "low": round(low, 4),
                    "high": round(high, 4),
                    "noisy": self.noisy(k),
                    "evidence": self.evidence(k),
                }
            )
        return pd.DataFrame(rows)

    def evidence(self, k: int) -> str:
        """Each member's estimate, and what a review found."""
        said = [f"{member.name} {np.nanmean(member.levels[:, k]):.0%}" for member in self.members]
        known, owners = self.run.dataset.reviewed, self.run.dataset.owners
        if known is not None and owners is not None:
            mine = (owners == k) & (known != UNKNOWN)
            wrong = int((known[mine] != self.run.scenario.labels[mine]).sum())
            said.append(f"{wrong} of {int(mine.sum())} reviewed labels are wrong")
        return "; ".join(said)

    def samples_table(self) -> pd.DataFrame:
        """samples.csv: the review list."""
        order, names = self.order, self.run.dataset.class_names
        owners = self.run.dataset.owners
        assert owners is not None
        chosen = np.stack([member.selected for member in self.judges])
        known = np.isfinite(chosen)
        selected = np.where(known.any(0), np.nansum(chosen, 0) / np.maximum(known.sum(0), 1), np.nan)
        confidence = np.nan_to_num(self.judges[0].p_wrong, nan=0.0)
        return pd.DataFrame(
            {
                "file": [guarded(self.run.dataset.names[i]) for i in order],
                "client": [guarded(self.run.scenario.called(int(owners[i]))) for i in order],
                "label": [guarded(names[c]) for c in self.observed[order]],
                "suggested": [guarded(names[c]) for c in self.suggested[order]],
                "p_wrong": self.p_wrong[order].round(4),
                "loss": -np.log(np.maximum(1 - confidence[order], 1e-6)).round(4),
                "selected": selected[order].round(4),
                "rank": np.arange(1, len(order) + 1),
                "agree": [f"{votes} of {len(self.judges)}" for votes in self.votes[order]],
            }
        )


def best(members: Sequence[Member]) -> tuple[Member, list[str]]:
    """The member whose model agrees best with held-out labels, and those it cannot be told from (paired over folds)."""
    top = max(members, key=lambda member: float(np.nanmean(member.held_out)))
    alike = []
    for member in members:
        gap = top.held_out - member.held_out
        spread = np.nanstd(gap, ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.inf
        if member is not top and np.nanmean(gap) <= student.ppf(0.975, max(1, len(gap) - 1)) * spread:
            alike.append(member.name)
    return top, alike
