"""How good a review list is: scores of verdicts on samples and clients against the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import rankdata, spearmanr

TOPS = (1, 5, 10)  # per cent of the review list
CALLED_NOISY = 0.1  # a client is called noisy if more than this share of its labels is taken for wrong


def sample_scores(suspicion: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Area under the curve, and precision at the top of the list; equal suspicions count as in random order."""
    known = np.isfinite(suspicion)
    suspicion, wrong = suspicion[known], wrong[known].astype(bool)
    if not wrong.any() or wrong.all():
        return {}  # nothing to tell apart
    ranks = rankdata(suspicion)
    positive, negative = int(wrong.sum()), int((~wrong).sum())
    area = (ranks[wrong].sum() - positive * (positive + 1) / 2) / (positive * negative)
    return {"find/auc": float(area), **{f"find/precision_{top}": precision_at(suspicion, wrong, top) for top in TOPS}}


def precision_at(suspicion: np.ndarray, wrong: np.ndarray, per_cent: float) -> float:
    """The share of wrong labels among the first `per_cent` of the list, in expectation over the order of ties."""
    count = max(1, round(len(suspicion) * per_cent / 100))
    least = np.sort(suspicion)[::-1][count - 1]
    above, tied = suspicion > least, suspicion == least
    return float((wrong[above].sum() + (count - above.sum()) * wrong[tied].mean()) / count)


def client_scores(
    levels: Sequence[float] | np.ndarray, noisy: Sequence[bool] | np.ndarray, true: Sequence[float] | np.ndarray
) -> dict[str, float]:
    """Error and rank correlation of clients' noise levels, and the share of clean clients that were called noisy."""
    levels, true, noisy = np.asarray(levels, float), np.asarray(true, float), np.asarray(noisy, bool)
    known = np.isfinite(levels) & np.isfinite(true)
    scores: dict[str, float] = {}
    if known.any():
        scores["levels/error"] = float(np.abs(levels - true)[known].mean())
    if known.sum() > 2 and np.ptp(levels[known]) > 0 and np.ptp(true[known]) > 0:
        scores["levels/rank"] = float(spearmanr(levels[known], true[known]).statistic)
    clean = true == 0
    if clean.any():
        scores["find/accused"] = float(noisy[clean].mean())
    return scores


def harm(observed: np.ndarray, suggested: np.ndarray, clean: np.ndarray, owner: np.ndarray) -> list[str | int]:
    """What speaks against taking suggested labels, judged by those whose truth is known (`clean` not negative).

    A sentence, if they would break at least as many as they fix; and the clients at which they would break more than
    they fix, and more than a tenth: a clean site can be spoilt while the whole gets better.
    """
    told: list[str | int] = []
    scores = correction_scores(observed, suggested, clean)
    if scores["broken"] and scores["broken"] >= scores["fixed"]:
        told.append(
            f"of {scores['reviewed']} labels whose truth is known, they would fix {scores['fixed']} and break "
            f"{scores['broken']}"
        )
    for k in np.unique(owner):
        mine = owner == k
        here = correction_scores(observed[mine], suggested[mine], clean[mine])
        if here["broken"] > max(1, here["fixed"], CALLED_NOISY * here["reviewed"]):
            told.append(int(k))
    return told


def in_words(found: Sequence[str | int], called: Callable[[int], str]) -> str | None:
    """`harm` as one sentence; None if nothing speaks against the labels."""
    said = [text for text in found if isinstance(text, str)]
    spoilt = [called(k) for k in found if not isinstance(k, str)]
    said += [f"they would break more labels than they fix at {', '.join(spoilt)}"] if spoilt else []
    return "; ".join(said) or None


def correction_scores(observed: np.ndarray, suggested: np.ndarray, clean: np.ndarray) -> dict[str, int]:
    """Of the labels whose truth is known (not negative), how many a correction would fix, and how many break."""
    known = clean >= 0
    before, after = (observed == clean)[known], (suggested == clean)[known]
    return {"reviewed": int(known.sum()), "fixed": int((~before & after).sum()), "broken": int((before & ~after).sum())}
