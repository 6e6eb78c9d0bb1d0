"""What happens after every round: evaluate on the common grid, record, checkpoint. Here model and truth meet."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import torch
from omegaconf import OmegaConf

from fnll.federation import Clients, Ledger, Personal, Snapshot
from fnll.harness.checkpoint import Checkpoints
from fnll.harness.diagnostics import Diagnostics, Round
from fnll.harness.evaluate import LocalAccuracies, TestSet, confusion, local_scores, scores
from fnll.harness.integrity import DIAGNOSTICS, METRICS
from fnll.harness.metrics import LAST, require_registered
from fnll.harness.plain import plain
from fnll.harness.prepare import Run
from fnll.harness.run_folder import RunFolder
from fnll.harness.tally import Tally
from fnll.images import InMemory
from fnll.types import Update


class Progress(Protocol):
    """Whoever watches a run: a progress bar, a sweep's display, a logger."""

    def start(self, run: Run, folder: RunFolder) -> None: ...

    def step(self, row: dict[str, Any], facts: list[dict[str, Any]], rounds: int) -> None: ...

    def finish(self, summary: dict[str, Any]) -> None: ...

    def abort(self) -> None: ...  # the run stopped early


class Observer:
    """Evaluates on the common grid of client updates, records and checkpoints; beside training if a core is free."""

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        checkpoints: Checkpoints,
        watchers: list[Progress],
        overlap: bool,
    ) -> None:
        cfg, scenario, truth = run.cfg, run.scenario, run.truth
        self.run, self.folder, self.checkpoints, self.watchers = run, folder, checkpoints, watchers
        device = run.device
        self.test = TestSet(
            truth.test,
            truth.test_labels,
            scenario.transform,
            scenario.num_classes,
            cfg.eval.batch_size,
            device,
            shuffled=run.batch_dependent,
        )
        self.sampled: TestSet | None = None  # made when it is first needed
        self.locals: LocalAccuracies | None = None  # likewise
        self.validation = self._validation()
        self.diagnostics = Diagnostics(
            scenario, truth, samples=cfg.diagnostics_samples, device=device, shuffled=run.batch_dependent
        )
        self.tally = Tally(scenario)
        self.window: list[Round] = []
        self.before: Clients = {}
        self.last_step = 0
        self.began = self.saved = time.perf_counter()
        self.total = 0.0
        self.thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) if overlap else None
        self.pending: Future[None] | None = None

    def _validation(self) -> TestSet | None:
        """The held-out part of the training set, with the labels it was observed with."""
        held, scenario = self.run.truth.validation, self.run.scenario
        if held is None:
            return None
        images = InMemory(scenario.images.take(held))
        return TestSet(
            images,
            scenario.labels[held],
            scenario.transform,
            scenario.num_classes,
            self.run.cfg.eval.batch_size,
            self.run.device,
            shuffled=self.run.batch_dependent,
        )

    def _local_models(self, snapshot: Snapshot) -> dict[int, float]:
        """How good the clients' own models are, if the method keeps any: on a sub-sample, since they may be many."""
        method = self.run.method
        if not isinstance(method, Personal):
            return {}
        if self.locals is None:
            self.locals = LocalAccuracies(method.model, self._few())
        return self.locals.of(method.models(snapshot.state))

    def _uploads(self, snapshot: Snapshot, updates: Sequence[Update]) -> dict[int, float]:
        """How good the models are that clients sent: each as the method would judge it if it were the server's."""
        sent = {update.client: update.weights for update in updates if update.weights is not None}
        states = ((client, replace(snapshot.state, weights=weights)) for client, weights in sorted(sent.items()))
        return LocalAccuracies(self.run.method.model, self._few()).of(states)

    def _few(self) -> TestSet:
        """A part of the test set, for what is judged many at a time."""
        if self.sampled is None:
            self.sampled = self.test.sampled(self.run.cfg.diagnostics_samples)
        return self.sampled

    def resume(self, snapshot: Snapshot | None, notes: Mapping[str, Any] | None = None) -> None:
        """Take up where a checkpoint left off; at the very beginning, note the labels as they were given."""
        if snapshot is None:
            given = {"step": 0, "t": 0, "stage": "given"}
            labels = [{**given, "name": name, "value": value} for name, value in self.diagnostics.labels({})]
            self.folder.append(DIAGNOSTICS, labels)
        else:
            self.before = snapshot.clients
            self.tally = Tally(self.run.scenario, notes)
            self.last_step = self.step_of(snapshot)
            rows = self.folder.rows()
            self.total = rows[-1]["time/total_s"] if rows else 0.0

    def see(self, snapshot: Snapshot, ledger: Ledger, updates: Sequence[Update] = ()) -> None:
        """One method round is over; `updates` are the last that clients sent in it."""
        self.window.append(Round(snapshot.t, self.before, ledger, snapshot.clients))
        self.before = snapshot.clients
        step = self.step_of(snapshot)
        if not self._due(step):
            return
        now = time.perf_counter()
        seconds, self.began = now - self.began, now
        self.total += seconds
        window, self.window = self.window, []
        every = self.run.cfg.diagnostics_every
        memorised = every > 0 and (self._crossed(step, every) or step == self.run.cfg.rounds)
        covered, self.last_step = step - self.last_step, step
        sent = updates if memorised and self.run.cfg.diagnostics_uploads else ()
        self.settle()
        if self.thread is None:
            self._observe(snapshot, window, step, memorised, seconds / covered, self.total, sent)
        else:
            self.pending = self.thread.submit(
                self._observe, snapshot, window, step, memorised, seconds / covered, self.total, sent
            )

    def settle(self) -> None:
        """Wait for the evaluation under way; its error, if any, is raised here."""
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def close(self) -> None:
        if self.thread is not None:
            self.thread.shutdown(wait=True, cancel_futures=True)

    def step_of(self, snapshot: Snapshot) -> int:
        """Position on the grid: how many times m client updates have been sent."""
        return min(snapshot.totals.spent // self.run.cohort_size, self.run.cfg.rounds)

    def _due(self, step: int) -> bool:
        crossed = self._crossed(step, self.run.cfg.eval_every)
        return step > self.last_step and (crossed or step > self.run.cfg.rounds - LAST)

    def _crossed(self, step: int, every: int) -> bool:
        """Whether a multiple of `every` lies between the last evaluation and `step`, which may not be one itself."""
        return step // every > self.last_step // every

    def _observe(
        self,
        snapshot: Snapshot,
        window: list[Round],
        step: int,
        memorised: bool,
        seconds: float,
        total: float,
        updates: Sequence[Update],
    ) -> None:
        started = time.perf_counter()
        model = self.run.method.model(snapshot.state)
        row: dict[str, Any] = {"step": step, "stage": window[-1].stage}
        row |= scores(*confusion(model, self.test))
        if self.validation is not None:
            row["val/accuracy"] = scores(*confusion(model, self.validation))["test/accuracy"]
        row |= {f"comm/{name}": value for name, value in snapshot.totals.costs().items()}
        row |= self.diagnostics.score(window)
        self.tally.add(window)
        if memorised:
            row |= self.diagnostics.memorisation(model)
            row |= self.diagnostics.detectors(
                self.tally.suspicion(snapshot.clients), self.tally.levels, self.tally.noisy
            )
        facts = [{"step": step, **fact} for fact in self.diagnostics.facts(window)]
        if memorised and (local := self._local_models(snapshot)):
            row |= local_scores(local)
            told = {"t": snapshot.t, "stage": row["stage"], "name": "local_accuracy", "value": plain(local)}
            facts.append({"step": step, **told})
        if sent := self._uploads(snapshot, updates):
            told = {"t": snapshot.t, "stage": row["stage"], "name": "upload_accuracy", "value": plain(sent)}
            facts.append({"step": step, **told})
        row |= {"time/step_s": seconds, "time/total_s": total, "time/eval_s": time.perf_counter() - started}
        require_registered(row)
        self.folder.append(DIAGNOSTICS, facts)
        self.folder.append(METRICS, [row])
        over = snapshot.totals.spent >= self.run.budget
        if over or time.perf_counter() - self.saved >= self.run.cfg.checkpoint_seconds:
            self.checkpoints.save(snapshot, self.folder.written(), self.tally.notes())
            self.saved = time.perf_counter()
        for watcher in self.watchers:
            watcher.step(row, facts, self.run.cfg.rounds)


def overlaps(cfg: Any, spare_core: bool | None) -> bool:
    """Whether evaluation runs beside training: if asked for, or if training leaves a core free."""
    if cfg.eval.overlap != "auto":
        return bool(cfg.eval.overlap)
    if spare_core is not None:
        return spare_core
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = OmegaConf.select(cfg, "executor.threads", default=1)
    return cores > busy
