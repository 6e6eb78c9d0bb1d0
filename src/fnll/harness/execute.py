"""One run: federate, observe, summarise."""

from __future__ import annotations

import errno
import logging
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch

from fnll.errors import UserError
from fnll.executors.numerics import set_deterministic
from fnll.federation import Executor, Snapshot, federate
from fnll.harness.checkpoint import DAMAGE, Checkpoints, Restored
from fnll.harness.config import Request, store_of
from fnll.harness.divergence import LastUpdates, failed_over_numbers, hopeless_from
from fnll.harness.identity import run_id, settings
from fnll.harness.integrity import METRICS, in_words
from fnll.harness.known import note
from fnll.harness.label import not_compared
from fnll.harness.making import declined
from fnll.harness.manifest import describe, facts_of, require_same_truth
from fnll.harness.observer import Observer, Progress, overlaps
from fnll.harness.prepare import Run, prepare
from fnll.harness.run_folder import DeclinedError, RunFolder, StoreError
from fnll.harness.status import Status
from fnll.harness.verdict_files import write_verdict
from fnll.harness.verdicts import judge
from fnll.harness.warned import Warned, listening, warn_of
from fnll.scenario.scenario import CLEAN
from fnll.system.files import remove_folder, write_atomic
from fnll.weights import all_finite

log = logging.getLogger(__name__)

UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}  # what a store's disk may answer


def execute(
    run: Run,
    watchers: list[Progress] | None = None,
    *,
    spare_core: bool | None = None,
    warned: Warned | None = None,
    executor_of: Callable[[Run], Executor] = Run.executor,
) -> dict[str, Any]:
    """Do `run` to its end from where it stands, and return its summary; a finished run is only read.

    `spare_core` says whether evaluation has a core to itself, for eval.overlap=auto; None: find out. `warned` has heard
    what preparing it warned of, and hears the rest. `executor_of` makes what does its clients' work: its own executor,
    or one that it shares with other runs.
    """
    if warned is None:
        with listening() as warned:
            return execute(run, watchers, spare_core=spare_core, warned=warned, executor_of=executor_of)
    folder = RunFolder(Path(run.cfg.runs_dir) / run.run_id)
    require_same_truth(run, folder)
    if folder.finished:
        warned.recall(folder.path)
        note(folder.path, run.key)
        return folder.summary()
    folder.require_resumable()
    folder.open()
    try:
        if folder.finished:  # another process finished it while we waited for the lock
            warned.recall(folder.path)
            return folder.summary()
        folder.unmark()
        describe(run.request, folder, **facts_of(run))
        warned.keep_in(folder.path, settings(run.request))
        warn_of(run.dataset, run.scenario, run.truth)
        ask(run)
        return _train(run, folder, watchers or [], spare_core, executor_of)
    except DeclinedError as error:
        folder.mark(Status.DECLINED, {"reason": str(error)})
        raise
    except Exception as error:
        with suppress(OSError):
            folder.mark(Status.FAILED, {"error": told(error), "command": run.request.command, **_trace(error)})
        if isinstance(error, OSError) and _of_folder(error, folder.path):
            kind = StoreError if error.errno in UNWRITABLE else UserError
            raise kind(f"run {folder.run_id}: cannot write to {folder.path}: {error.strerror or error}") from error
        raise
    finally:
        folder.close()


def _of_folder(error: OSError, folder: Path) -> bool:
    """Whether the run's own folder cannot be written; a method may read and write elsewhere, which is its affair."""
    place = error.filename
    if not isinstance(place, (str, bytes, os.PathLike)):
        return True  # a write to an open file: a disk that is full
    return Path(os.fsdecode(place)).resolve().is_relative_to(folder.resolve())


def prepare_or_record(request: Request) -> Run:
    """Prepare a run of a sweep; one that cannot be is recorded as failed, so that the report can say why it is missing.

    It has no scenario, so its folder is named by its settings alone. A later attempt that succeeds removes it.
    """
    folder = RunFolder(store_of(request.cfg) / run_id(request, fingerprint=None))
    try:
        run = prepare(request)
    except Exception as error:
        folder.open()
        try:
            with suppress(OSError):  # the error itself is what the user needs to know
                describe(request, folder, str(request.cfg.device))
                folder.mark(Status.FAILED, {"error": told(error), "command": request.command, **_trace(error)})
        finally:
            folder.close()
        raise
    remove_folder(folder.path)
    return run


def ask(run: Run) -> None:
    """Let the method decline a scenario that it cannot take, and a budget in which it would be another method."""
    if reason := not_compared(run.request):
        raise DeclinedError(reason)
    if reason := declined(run.method, run.world):
        raise DeclinedError(f"{run.request.name} declines this scenario: {reason}")
    if reason := run.too_small():
        raise DeclinedError(f"{run.request.name} declines this budget: {reason}")


def told(error: BaseException) -> str:
    """An error in words: a user's mistake as its message, anything else with its type and notes."""
    if isinstance(error, UserError):
        return str(error)
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])


def _trace(error: Exception) -> dict[str, str]:
    return {} if isinstance(error, UserError) else {"traceback": "".join(traceback.format_exception(error))}


def _train(
    run: Run,
    folder: RunFolder,
    watchers: list[Progress],
    spare_core: bool | None,
    executor_of: Callable[[Run], Executor],
) -> dict[str, Any]:
    set_deterministic("warn")
    checkpoints = Checkpoints(folder.path / "checkpoint", folder.run_id)
    restored = _restored(run, folder, checkpoints)
    for watcher in watchers:
        watcher.start(run, folder)
    executor = LastUpdates(executor_of(run))
    observer = Observer(run, folder, checkpoints, watchers, overlaps(run.cfg, spare_core))
    last = restored.snapshot if restored else None
    observer.resume(last, restored.notes if restored else None)
    try:
        last, diverged_at = _do_rounds(run, executor, observer, last)
        observer.settle()
        if diverged_at is None:
            diverged_at = hopeless_from(folder.rows(), run.scenario.num_classes)
    except BaseException:
        for watcher in watchers:
            watcher.abort()
        raise
    finally:
        observer.close()
        executor.close()
    if last is not None:
        write_atomic(folder.path / "weights.safetensors", safetensors.torch.save(last.state.weights))
    if last is not None and diverged_at is None and run.dataset.names:  # somebody's own data: what they came for
        write_verdict(run, folder.path, judge(run, last, observer.tally))
    summary = folder.finish(_facts(run, executor.exact), diverged_at=diverged_at, rounds=run.cfg.rounds)
    note(folder.path, run.key)
    for watcher in watchers:
        watcher.finish(summary)
    return summary


def _restored(run: Run, folder: RunFolder, checkpoints: Checkpoints) -> Restored | None:
    """What an earlier attempt left to continue from; the records are cut back to it."""
    restored = checkpoints.load(lambda found: folder.disagreement(found.records) or _misfit(run, found.snapshot))
    if restored is None and (folder.path / METRICS).exists():
        log.warning("run %s was interrupted before a usable checkpoint; it starts over", folder.run_id)
    folder.cut(restored.records if restored else {})
    return restored


def _misfit(run: Run, snapshot: Snapshot) -> str | None:
    """Why a snapshot is none of this run, whatever its checksum says; None if the run can continue from it."""
    clients = len(run.scenario.shards)
    if odd := [k for k in snapshot.clients if not 0 <= k < clients]:
        return f"it knows client {odd[0]}, and there are {clients}"
    try:
        run.method.model(snapshot.state)
    except DAMAGE as error:
        return f"its state is none of {run.request.name}: {in_words(error)}"
    return None


def _do_rounds(
    run: Run, executor: LastUpdates, observer: Observer, last: Snapshot | None
) -> tuple[Snapshot | None, int | None]:
    """Every round that is left: the last good snapshot, and the step at which the run diverged, if it did."""
    try:
        rounds = federate(
            run.method,
            executor,
            run.world,
            budget=run.budget,
            seed=run.cfg.seed,
            resume=last,
            whole_round=run.whole_round,
        )
        for snapshot, ledger in rounds:
            if not all_finite(snapshot.state.weights):
                log.warning("round %d: the weights are no longer finite; the run has diverged", snapshot.t)
                return last, max(1, observer.step_of(snapshot))
            last = snapshot
            observer.see(snapshot, ledger, executor.last)
    except Exception as error:
        if not failed_over_numbers(error, last, executor.last):
            raise
        t, diverged_at = (last.t + 1, observer.step_of(last) + 1) if last else (1, 1)
        log.warning("round %d fails over numbers that are not finite (%s); the run has diverged", t, told(error))
        return last, diverged_at
    return last, None


def _facts(run: Run, exact: bool) -> dict[str, Any]:
    """What a run is, for its summary."""
    return {
        "method": run.request.name,
        "seed": run.cfg.seed,
        "run_id": run.run_id,
        "fingerprint": run.scenario.fingerprint,
        "origin": run.scenario.origin,
        "exact": exact,
        "protocol": run.cfg.protocol,
        **({"test_truth": run.truth.test_truth} if run.truth.test_truth != CLEAN else {}),
    }
