"""The panel: every method of the plan on every fold, and what each says about clients and samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch.nn.functional as F

from fnll.audit.plan import CONFIDENT, REFERENCE, Plan, request
from fnll.harness.checkpoint import Checkpoints
from fnll.harness.confident import answers, confident
from fnll.harness.detectors import CALLED_NOISY
from fnll.harness.execute import execute
from fnll.harness.prepare import Run, prepare
from fnll.harness.tally import Tally
from fnll.harness.verdicts import METHOD, Verdict, judge
from fnll.harness.warned import Warned, listening


@dataclass(frozen=True)
class Member:
    """What one method, or confident learning, says; arrays are over all samples but those with split=test."""

    name: str
    p_wrong: np.ndarray  # (n,) mean over the folds that trained on the sample; NaN where nobody judged it
    suggested: np.ndarray  # (n,)
    selected: np.ndarray  # (n,) NaN where the method does not select
    levels: np.ndarray  # (folds, clients)
    noisy: np.ndarray  # (clients,) share of the folds that call the client noisy
    held_out: np.ndarray  # (folds,) agreement of the final model with held-out labels
    judges_samples: bool

    @property
    def likely(self) -> np.ndarray:
        """The samples it takes for wrong."""
        return np.nan_to_num(self.p_wrong) > 0.5


@dataclass(frozen=True)
class PanelRun:
    """One run of the panel."""

    run: Run
    verdict: Verdict
    held: np.ndarray  # positions that the run did not train on
    probs: np.ndarray  # (held, classes): its predictions for these
    accuracy: float


def convene(
    data: Sequence[str], plan: Plan, runs_dir: Path, say: Callable[[str], None], known: Iterable[str] = ()
) -> tuple[Run, list[Member]]:
    """Run the plan (finished runs are read) and hear every member; the first run stands for the data.

    What runs warn of is said once, and not at all if it is `known`.
    """
    heard = set(known)

    def tell(text: str, _: str) -> None:
        if text not in heard:
            heard.add(text)
            say(f"! {text}")

    members: list[Member] = []
    first: Run | None = None
    done = 0
    for method in plan.methods:
        outcomes = []
        for fold in range(1, plan.folds + 1):
            done += 1
            say(f"run {done} of {len(plan.methods) * plan.folds}: {method}, fold {fold} of {plan.folds}")
            with listening(tell) as warned:
                outcomes.append(outcome_of(prepare(request(data, plan, method, fold, runs_dir)), warned))
        first = first or outcomes[0].run
        if method == REFERENCE:
            members.append(confident_member(outcomes))
        else:
            members.append(member(method, outcomes))
    assert first is not None
    return first, members


def outcome_of(run: Run, warned: Warned | None = None) -> PanelRun:
    """Run it, or read it if it is finished, and hear what it says."""
    summary = execute(run, warned=warned)
    folder = Path(run.cfg.runs_dir) / run.run_id
    restored = Checkpoints(folder / "checkpoint", run.run_id).load()
    if restored is None:
        raise RuntimeError(f"{folder}: no whole checkpoint")
    held = run.truth.validation
    assert held is not None  # a fold
    logits, _ = answers(run.method.model(restored.snapshot.state), run.scenario, held, run.device)
    verdict = judge(run, restored.snapshot, Tally(run.scenario, restored.notes))
    accuracy = summary["test/accuracy"]["last"]
    return PanelRun(run, verdict, held.numpy(), F.softmax(logits, 1).double().numpy(), float(accuracy or np.nan))


def member(name: str, outcomes: Sequence[PanelRun]) -> Member:
    """A method's verdict: means over folds, and the most frequent suggestion."""
    scenario = outcomes[0].run.scenario
    n, observed = len(scenario.labels), scenario.labels.numpy()
    wrong, chosen = np.full((len(outcomes), n), np.nan), np.full((len(outcomes), n), np.nan)
    votes = np.zeros((n, scenario.num_classes))
    for i, outcome in enumerate(outcomes):
        found = outcome.verdict
        wrong[i, found.index], chosen[i, found.index] = found.p_wrong, found.selected
        votes[found.index, found.suggested] += 1
    mean = _mean(wrong)
    suggested = np.where(votes.any(1) & (np.nan_to_num(mean) > 0.5), votes.argmax(1), observed)
    return Member(
        name,
        mean,
        suggested,
        _mean(chosen),
        np.stack([outcome.verdict.levels for outcome in outcomes]),
        np.mean([outcome.verdict.noisy for outcome in outcomes], axis=0),
        np.array([outcome.accuracy for outcome in outcomes]),
        judges_samples=any(outcome.verdict.source == METHOD for outcome in outcomes),
    )


def confident_member(outcomes: Sequence[PanelRun]) -> Member:
    """Confident learning on predictions of FedAvg's models for the fold that each has not seen."""
    scenario = outcomes[0].run.scenario
    n, observed = len(scenario.labels), scenario.labels.numpy()
    probs = np.full((n, scenario.num_classes), np.nan)
    for outcome in outcomes:
        probs[outcome.held] = outcome.probs
    judged = np.flatnonzero(np.isfinite(probs).all(1))
    found = confident(observed[judged], probs[judged])
    wrong, suggested, issue = np.full(n, np.nan), observed.copy(), np.zeros(n, dtype=bool)
    wrong[judged], suggested[judged], issue[judged] = found.wrong, found.suggested, found.issue
    owners = outcomes[0].run.dataset.owners
    assert owners is not None
    levels = np.stack([_levels(issue, owners.numpy(), outcome.held, len(scenario.shards)) for outcome in outcomes])
    return Member(
        CONFIDENT,
        wrong,
        suggested,
        np.full(n, np.nan),
        levels,
        (np.nanmean(levels, axis=0) > CALLED_NOISY).astype(float),
        np.array([outcome.accuracy for outcome in outcomes]),
        judges_samples=True,
    )


def _levels(issue: np.ndarray, owners: np.ndarray, held: np.ndarray, clients: int) -> np.ndarray:
    count = np.bincount(owners[held], minlength=clients)
    found = np.bincount(owners[held], issue[held], clients)
    return np.where(count > 0, found / np.maximum(count, 1), np.nan)


def _mean(rows: np.ndarray) -> np.ndarray:
    """Means of the columns over what is known; NaN where nothing is."""
    known = np.isfinite(rows)
    return np.where(known.any(0), np.nansum(rows, axis=0) / np.maximum(known.sum(0), 1), np.nan)
