"""One run: prepare, federate, observe, summarise. The only place where model, test set and truth meet."""

from __future__ import annotations

import errno
import logging
import os
import platform
import subprocess
import sys
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from omegaconf import OmegaConf

from fnll import NUMBERS, __version__
from fnll.checkpoint import Checkpoints
from fnll.diagnostics import Diagnostics, plain
from fnll.errors import UserError
from fnll.evaluate import TestSet, confusion, scores
from fnll.experiment import Experiment
from fnll.federation import Clients, Ledger, Snapshot, federate
from fnll.files import write_atomic, write_json
from fnll.images import InMemory
from fnll.records import DIAGNOSTICS, LAST, METRICS, DeclinedError, RunFolder, StoreError
from fnll.weights import all_finite

log = logging.getLogger(__name__)

UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}  # what a store's disk may answer


class Progress(Protocol):
    """Whoever watches a run: a progress bar, a sweep's display, a logger."""

    def start(self, experiment: Experiment, folder: RunFolder) -> None: ...

    def step(self, row: dict[str, Any], facts: list[dict[str, Any]], rounds: int) -> None: ...

    def finish(self, summary: dict[str, Any]) -> None: ...

    def abort(self) -> None: ...  # the run stopped early


def execute(
    experiment: Experiment, watchers: list[Progress] | None = None, *, spare_core: bool | None = None
) -> dict[str, Any]:
    """Run `experiment` to its end from where it stands, and return its summary; a finished run is only read.

    `spare_core` says whether evaluation has a core to itself, for eval.overlap=auto; None: find out.
    """
    folder = RunFolder(Path(experiment.cfg.runs_dir) / experiment.run_id)
    if folder.finished:
        return folder.summary()
    folder.open()
    try:
        if folder.finished:  # another process finished it while we waited for the lock
            return folder.summary()
        folder.unmark()
        _describe(experiment, folder)
        return _train(experiment, folder, watchers or [], spare_core)
    except DeclinedError as error:
        folder.mark("skipped", {"reason": str(error)})
        raise
    except Exception as error:
        with suppress(OSError):
            folder.mark("failed", {"error": told(error), "command": experiment.request.command, **_trace(error)})
        if isinstance(error, OSError):
            kind = StoreError if error.errno in UNWRITABLE else UserError
            raise kind(f"run {folder.run_id}: cannot write to {folder.path}: {error.strerror or error}") from error
        raise
    finally:
        folder.close()


def told(error: BaseException) -> str:
    """An error in words: a user's mistake as its message, anything else with its type and notes."""
    if isinstance(error, UserError):
        return str(error)
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])


def _trace(error: Exception) -> dict[str, str]:
    return {} if isinstance(error, UserError) else {"traceback": "".join(traceback.format_exception(error))}


def _train(
    experiment: Experiment, folder: RunFolder, watchers: list[Progress], spare_core: bool | None
) -> dict[str, Any]:
    torch.set_deterministic_debug_mode("warn")  # the same as use_deterministic_algorithms, without its slow import
    checkpoints = Checkpoints(folder.path / "checkpoint", folder.run_id)
    restored = checkpoints.load(folder.lengths())
    if restored is None and (folder.path / METRICS).exists():
        log.warning("run %s was interrupted before a usable checkpoint; it starts over", folder.run_id)
    folder.cut(restored.lengths if restored else {})
    for watcher in watchers:
        watcher.start(experiment, folder)
    executor = experiment.executor()
    observer = Observer(experiment, folder, checkpoints, watchers, _overlap(experiment.cfg, spare_core))
    last = restored.snapshot if restored else None
    observer.resume(last)
    diverged = False
    try:
        rounds = federate(
            experiment.method,
            executor,
            experiment.world,
            budget=experiment.budget,
            seed=experiment.cfg.seed,
            resume=last,
        )
        for snapshot, ledger in rounds:
            diverged = not all_finite(snapshot.state.weights)
            if diverged:
                log.warning("round %d: the weights are no longer finite; the run stops here as diverged", snapshot.t)
                break
            last = snapshot
            observer.see(snapshot, ledger)
        observer.settle()
    except BaseException:
        for watcher in watchers:
            watcher.abort()
        raise
    finally:
        observer.close()
        executor.close()
    if last is not None:
        write_atomic(folder.path / "weights.safetensors", safetensors.torch.save(last.state.weights))
    facts = {
        "method": experiment.request.name,
        "seed": experiment.cfg.seed,
        "run_id": folder.run_id,
        "fingerprint": experiment.scenario.fingerprint,
        "origin": experiment.scenario.origin,
        "exact": executor.exact,
        "protocol": experiment.cfg.protocol,
    }
    summary = folder.finish(facts, diverged=diverged, rounds=experiment.cfg.rounds)
    for watcher in watchers:
        watcher.finish(summary)
    return summary


class Observer:
    """Evaluates on the common grid of client updates, records and checkpoints; beside training if a core is free."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        checkpoints: Checkpoints,
        watchers: list[Progress],
        overlap: bool,
    ) -> None:
        cfg, scenario, truth = experiment.cfg, experiment.scenario, experiment.truth
        self.experiment, self.folder, self.checkpoints, self.watchers = experiment, folder, checkpoints, watchers
        device = experiment.device
        self.test = TestSet(
            truth.test, truth.test_labels, scenario.transform, scenario.num_classes, cfg.eval.batch_size, device
        )
        self.validation = self._validation()
        self.diagnostics = Diagnostics(scenario, truth, samples=cfg.diagnostics_samples, device=device)
        self.window: list[tuple[Clients, Ledger]] = []
        self.before: Clients = {}
        self.last_step = 0
        self.began = self.saved = time.perf_counter()
        self.total = 0.0
        self.thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) if overlap else None
        self.pending: Future[None] | None = None

    def _validation(self) -> TestSet | None:
        """The held-out part of the training set, with the labels it was observed with."""
        held, scenario = self.experiment.truth.validation, self.experiment.scenario
        if held is None:
            return None
        images = InMemory(scenario.images.take(held))
        size = self.experiment.cfg.eval.batch_size
        return TestSet(
            images, scenario.labels[held], scenario.transform, scenario.num_classes, size, self.experiment.device
        )

    def resume(self, snapshot: Snapshot | None) -> None:
        """Take up where a checkpoint left off."""
        if snapshot is not None:
            self.before = snapshot.clients
            self.last_step = self._step(snapshot)
            rows = self.folder.rows()
            self.total = rows[-1]["time/total_s"] if rows else 0.0

    def see(self, snapshot: Snapshot, ledger: Ledger) -> None:
        """One method round is over."""
        self.window.append((self.before, ledger))
        self.before = snapshot.clients
        step = self._step(snapshot)
        if not self._due(step):
            return
        now = time.perf_counter()
        seconds, self.began = now - self.began, now
        self.total += seconds
        window, self.window = self.window, []
        covered, self.last_step = step - self.last_step, step
        self.settle()
        if self.thread is None:
            self._observe(snapshot, window, step, seconds / covered, self.total)
        else:
            self.pending = self.thread.submit(self._observe, snapshot, window, step, seconds / covered, self.total)

    def settle(self) -> None:
        """Wait for the evaluation under way; its error, if any, is raised here."""
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def close(self) -> None:
        if self.thread is not None:
            self.thread.shutdown(wait=True, cancel_futures=True)

    def _step(self, snapshot: Snapshot) -> int:
        """Position on the grid: how many times m client updates have been sent."""
        return min(snapshot.totals.client_updates // self.experiment.cohort, self.experiment.cfg.rounds)

    def _due(self, step: int) -> bool:
        every, rounds = self.experiment.cfg.eval_every, self.experiment.cfg.rounds
        crossed = step // every > self.last_step // every
        return step > self.last_step and (crossed or step > rounds - LAST)

    def _observe(
        self, snapshot: Snapshot, window: list[tuple[Clients, Ledger]], step: int, seconds: float, total: float
    ) -> None:
        started = time.perf_counter()
        model = self.experiment.method.model(snapshot.state)
        stage = [ledger.records["stage"] for _, ledger in window if "stage" in ledger.records]
        row: dict[str, Any] = {"round": step, "stage": stage[-1] if stage else "train"}
        row |= scores(*confusion(model, self.test))
        if self.validation is not None:
            row["val/accuracy"] = scores(*confusion(model, self.validation))["test/accuracy"]
        row |= {f"comm/{name}": value for name, value in snapshot.totals._asdict().items()}
        row |= self.diagnostics.score(window, snapshot.clients)
        every = self.experiment.cfg.diagnostics_every
        if every and (step % every == 0 or step == self.experiment.cfg.rounds):
            row |= self.diagnostics.memorisation(model)
        row |= {"time/round_s": seconds, "time/total_s": total, "time/eval_s": time.perf_counter() - started}
        facts = [
            {"round": step, "t": snapshot.t, "name": name, "value": value}
            for name, value in self.diagnostics.facts(window, snapshot.clients)
        ]
        self.folder.append(DIAGNOSTICS, facts)
        self.folder.append(METRICS, [row])
        over = snapshot.totals.client_updates >= self.experiment.budget
        if over or time.perf_counter() - self.saved >= self.experiment.cfg.checkpoint_seconds:
            self.checkpoints.save(snapshot, self.folder.lengths())
            self.saved = time.perf_counter()
        for watcher in self.watchers:
            watcher.step(row, facts, self.experiment.cfg.rounds)


def _overlap(cfg: Any, spare_core: bool | None) -> bool:
    """Whether evaluation runs beside training: if asked for, or if training leaves a core free."""
    if cfg.eval.overlap != "auto":
        return bool(cfg.eval.overlap)
    if spare_core is not None:
        return spare_core
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = OmegaConf.select(cfg, "executor.threads", default=1)
    return cores > busy


def _describe(experiment: Experiment, folder: RunFolder) -> None:
    """Write what this run is: the resolved config, and the facts around it; stop if its method declines."""
    request, truth = experiment.request, experiment.truth
    config = {**OmegaConf.to_container(request.cfg), "choices": request.choices}  # type: ignore[dict-item]
    config.pop("sweep", None)  # of the grid, not of the run
    write_atomic(folder.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    method = experiment.method
    manifest = {
        "run_id": folder.run_id,
        "command": request.command,
        "fingerprint": experiment.scenario.fingerprint,
        "origin": experiment.scenario.origin,
        "dataset": experiment.scenario.name,
        "numbers": NUMBERS,
        "numerics": experiment.numerics,
        "commit": commit(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "paper": (type(method).__doc__ or "").strip().split("\n")[0],
        "privileges": list(getattr(method, "privileges", ())),
        "num_clients": len(experiment.scenario.shards),
        "nominal": truth.nominal,
        "realised": truth.realised,
        "versions": {
            "fnll": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "torchvision", "lightning", "scikit-learn", "numpy")},
        },
        "host": {
            "platform": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "device": str(experiment.device),
        },
        "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }
    write_json(folder.path / "manifest.json", plain(manifest))
    reason = method.skip(experiment.world) if hasattr(method, "skip") else None
    if reason:
        raise DeclinedError(f"{request.name} declines this scenario: {reason}")


def commit() -> str | None:
    """The commit of the source tree, with `+` if it has uncommitted changes; None when fnll is not run from one."""
    git = ["git", "-C", str(Path(__file__).resolve().parents[2])]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, timeout=10)
        if tracked.returncode:
            return None
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
