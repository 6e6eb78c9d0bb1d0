"""What an audit runs: fixed before it starts from an estimate of the time, written down, and repeatable from there."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from fnll.errors import UserError, require
from fnll.harness.config import Request, compose
from fnll.harness.making import declined
from fnll.harness.prepare import Run, prepare
from fnll.scenario.card import MIXTURE_SIZE

CONFIDENT = "confident learning"  # the member that looks at FedAvg's out-of-sample predictions
REFERENCE = "fedavg"
CANDIDATES = (REFERENCE, "fedrn", "fedcorr", "fednoro")  # in the order of their importance
# Of FedAvg's time: processor time of a run of this plan (small CNN, 10 sites, executor=serial, one thread, all in one
# process, best of 3), the largest ratio of three: digits in 40 and in 10 rounds, CIFAR-10 (JPEG copy) in 10. The
# machine was busy, and repetitions of one run differed by up to a third.
COST = {REFERENCE: 1.0, "fedrn": 1.3, "fedcorr": 1.1, "fednoro": 1.1}
UNMEASURED = 3.0  # of any other method that somebody asks for: a guess
OVER_CLIENTS = ("fedcorr", "fednoro")  # fit a mixture over clients
LADDER = ((3, 40), (3, 25), (3, 15), (2, 15), (2, 10))  # folds and rounds, from thorough to quick
START = 3.0  # seconds that a run takes beside training
SHARE = 0.6  # of the time that may be planned for: estimates err
LARGEST = 32  # pixels a side that an audit looks at
COHORT = 10  # clients in a round at most
SECONDS = 0.5  # that the estimate measures for


@dataclass(frozen=True)
class Plan:
    """The runs of an audit. `words` are the settings that they share, without the data's place."""

    methods: tuple[str, ...]
    left_out: dict[str, str]  # methods, and why they do not take part
    folds: int
    rounds: int
    seed: int
    words: tuple[str, ...]
    estimate: float  # seconds

    def words_for(self, data: Sequence[str], method: str, fold: int) -> list[str]:
        """The settings of one run: fold `fold` of all, with a seed of its own."""
        own = [f"method={method}", f"dataset.fold={fold}/{self.folds}", f"seed={self.seed + fold - 1}"]
        return [*data, *self.words, f"rounds={self.rounds}", *own]

    def to_json(self) -> str:
        """What `read` reads."""
        return json.dumps({"format": 1, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


def read(path: Path) -> Plan:
    """A plan that an earlier audit wrote."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("format") != 1:
            raise ValueError("another format")
        methods, words = tuple(map(str, found.pop("methods"))), tuple(map(str, found.pop("words")))
        return Plan(methods=methods, words=words, **found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"--plan {path} is no plan of an audit ({error}); it is called plan.json there") from None


def data_words(file: Path, root: str | None, ignore: Sequence[str], size: int | None) -> list[str]:
    """The settings that say where the data are."""
    words = ["dataset=table", f"dataset.file={quoted(str(file))}", "partition=given", "noise=native"]
    words += [f"dataset.root={quoted(root)}"] if root else []
    words += [f"dataset.ignore=[{','.join(map(quoted, ignore))}]"] if ignore else []
    return [*words, *([f"dataset.size={size}"] if size else [])]


def quoted(text: str) -> str:
    """A value as Hydra reads it, whatever signs it holds."""
    require("${" not in text, f"{text}: settings cannot hold ${{; rename the file or its folder")
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def fixed(data: Sequence[str], minutes: float, seed: int, wanted: Sequence[str] = ()) -> Plan:
    """The most thorough plan that is expected to take at most `minutes`."""
    first = prepare(compose([*data, "dataset.fold=1/2"]))
    clients = len(first.scenario.shards)
    height = max(first.scenario.input_shape[1:])
    words = ["logger=none", "eval_every=1000", "diagnostics_every=0", "checkpoint_seconds=600"]
    words += [f"fraction={min(1.0, COHORT / clients):.6g}"]
    words += ["model=small_cnn"] if min(first.scenario.input_shape[1:]) >= 4 else ["model=mlp"]
    words += [f"dataset.size={LARGEST}"] if height > LARGEST and not _sized(data) else []
    blank = Plan((), {}, 2, LADDER[-1][1], seed, tuple(words), 0.0)
    run = prepare(compose(blank.words_for(data, REFERENCE, 1)))
    second = _seconds_per_sample(run)
    chosen = tuple(wanted) or CANDIDATES
    ready = {method: _ready(blank, data, method, clients) for method in chosen}
    for folds, rounds in LADDER:
        plan = replace(blank, folds=folds, rounds=rounds)
        left_out = {method: why for method in chosen if (why := _unfit(ready[method], rounds))}
        methods = tuple(method for method in chosen if method not in left_out)
        while methods:
            plan = replace(plan, methods=methods, left_out=left_out, estimate=_estimate(plan, methods, run, second))
            if plan.estimate <= 60 * minutes * SHARE:
                return plan
            if methods == (REFERENCE,) or wanted or (folds, rounds) != LADDER[-1]:
                break
            left_out = {**left_out, methods[-1]: "no time for it"}
            methods = methods[:-1]
    if plan.estimate > 60 * minutes:
        raise UserError(
            f"even the quickest plan would take about {plan.estimate / 60:.0f} minutes; type --minutes "
            f"{plan.estimate / 60 / SHARE:.0f}, or look at a part of the table"
        )
    return plan


def _sized(data: Sequence[str]) -> bool:
    return any(word.startswith("dataset.size=") for word in data)


def _ready(plan: Plan, data: Sequence[str], method: str, clients: int) -> Run | str:
    """The method's run on these data, or why it cannot judge them whatever the time."""
    if method in OVER_CLIENTS and clients < MIXTURE_SIZE:
        seen = "; with four it has been seen to 'correct' right labels of clean sites" if method == "fedcorr" else ""
        return f"it fits a mixture over clients, and {clients} are too few for that (at least {MIXTURE_SIZE}){seen}"
    try:
        run = prepare(compose(plan.words_for(data, method, 1)))
        return declined(run.method, run.world) or run
    except UserError as error:
        return str(error)


def _unfit(ready: Run | str, rounds: int) -> str | None:
    """Why a method cannot judge the data in so many rounds."""
    return ready if isinstance(ready, str) else ready.with_rounds(rounds).too_small()


def _estimate(plan: Plan, methods: Sequence[str], run: Run, second: float) -> float:
    """Seconds that the runs of these methods take."""
    trained = len(run.scenario.labels) * (plan.folds - 1) / plan.folds  # samples of one run
    share = run.cohort_size / len(run.scenario.shards)
    one = plan.rounds * share * run.cfg.local.epochs * trained * second
    return plan.folds * sum(START + one * COST.get(method, UNMEASURED) for method in methods)


def _seconds_per_sample(run: Run) -> float:
    """How long a training step takes per sample here, measured for a moment."""
    net = run.net.load(run.net.fresh(0))
    size = int(run.cfg.local.batch_size)
    index = torch.cat(run.scenario.shards)[:size]
    x, y = run.scenario.transform.plain(run.scenario.images.take(index)), run.scenario.labels[index]
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-3)
    steps, began = 0, time.perf_counter()
    while steps < 3 or time.perf_counter() - began < SECONDS:
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
        steps += 1
    return (time.perf_counter() - began) / steps / len(index)


def request(data: Sequence[str], plan: Plan, method: str, fold: int, runs_dir: Path) -> Request:
    """One run of the plan."""
    return compose([*plan.words_for(data, method, fold), f"runs_dir={quoted(str(runs_dir))}"])
