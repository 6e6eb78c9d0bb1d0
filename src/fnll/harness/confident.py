"""The neutral verdict: confident learning (Northcutt et al., JAIR 2021), on predictions of networks that were not
trained on the samples. It needs nothing from a method, so it judges samples where a method does not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fnll.scenario.scenario import Scenario
from fnll.seeding import numpy_rng, torch_rng

FOLDS = 5
AT_ONCE = 500


@dataclass(frozen=True)
class Confident:
    """What confident learning says about some samples."""

    wrong: np.ndarray  # (n,) probability that the label is wrong: one minus the prediction's confidence in it
    issue: np.ndarray  # (n,) bool: the samples it would have reviewed
    suggested: np.ndarray  # (n,) the likeliest class of an issue, else the label as it is


def confident(labels: np.ndarray, probs: np.ndarray) -> Confident:
    """Confident learning on out-of-sample predictions (n, classes)."""
    from cleanlab.filter import find_label_issues  # late: it takes seconds to import
    from cleanlab.rank import get_label_quality_scores

    present = np.unique(labels)
    if len(present) < 2:
        return Confident(np.zeros(len(labels)), np.zeros(len(labels), dtype=bool), labels.copy())
    compact = np.searchsorted(present, labels)
    probs = probs[:, present] + 1e-6
    probs = probs / probs.sum(1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some classes are small, which nobody here can change
        quality = get_label_quality_scores(compact, probs, method="self_confidence")
        issue = find_label_issues(compact, probs, filter_by="prune_by_noise_rate", n_jobs=1)
    issue = np.asarray(issue, dtype=bool)
    return Confident(1 - np.asarray(quality, float), issue, np.where(issue, present[probs.argmax(1)], labels))


def cross_validated(features: np.ndarray, labels: np.ndarray, classes: int, seed: int = 0) -> np.ndarray:
    """Out-of-sample class probabilities (n, classes) of linear probes, each trained on the other folds."""
    from sklearn.linear_model import LogisticRegression

    spread = features.std(0)
    features = (features - features.mean(0)) / np.where(spread > 1e-8, spread, 1)
    folds = fold_of(labels, FOLDS, seed)
    probs = np.zeros((len(labels), classes))
    for fold in range(FOLDS):
        held, rest = folds == fold, folds != fold
        seen = np.unique(labels[rest])
        if not held.any() or not len(seen):
            continue
        if len(seen) == 1:
            probs[np.ix_(held, seen)] = 1.0
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # stopping early is as good here
            probe = LogisticRegression(C=0.1, max_iter=100).fit(features[rest], labels[rest])
        probs[np.ix_(held, probe.classes_)] = probe.predict_proba(features[held])
    return probs


def fold_of(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """A fold for every sample, classes spread evenly."""
    order = numpy_rng(seed, "folds").permutation(len(labels))
    fold = np.empty(len(labels), dtype=np.int64)
    fold[order[np.argsort(labels[order], kind="stable")]] = np.arange(len(labels)) % folds
    return fold


@torch.inference_mode()
def answers(model: nn.Module, scenario: Scenario, index: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Logits and features of training images, in their order; features are the logits where a network has none.

    Networks that normalise by the batch see the images in a fixed random order.
    """
    model = model.to(device).eval()
    order = torch.randperm(len(index), generator=torch_rng("answers", len(index)))
    logits, features = [], []
    head, body = getattr(model, "head", None), getattr(model, "features", None)
    for rows in order.split(AT_ONCE):
        x = scenario.transform.plain(scenario.images.take(index[rows]).to(device))
        if isinstance(head, nn.Module) and callable(body):
            inside = body(x)
            logits.append(head(inside).float().cpu())
            features.append(inside.flatten(1).float().cpu())
        else:
            logits.append(model(x).float().cpu())
            features.append(logits[-1])
    back = torch.argsort(order)
    return torch.cat(logits)[back], torch.cat(features)[back]
