"""A directory of runs as tidy pandas frames.

store = load("runs")
store.runs      # one row per run: method, cell, seed, status, provenance, and every setting that differs
store.metrics   # one row per evaluated step of every run, with the run's method, cell and seed beside it
store.diagnostics("lid", "lid_gmm")  # one row per recorded fact; read when asked for
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import ItemsView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fnll.errors import UserError, nearest
from fnll.harness.integrity import DIAGNOSTICS, in_words
from fnll.harness.metrics import SCORES
from fnll.harness.status import Status
from fnll.report.cells import Cell, Place, Settings, arrange, common_settings, differing, method_name
from fnll.report.folders import StoredRun, read_lines, read_run
from fnll.report.words import display_name

log = logging.getLogger(__name__)

DONE = [Status.FINISHED, Status.DIVERGED]
KEYS = ["run_id", "method", "cell", "seed"]  # what every tidy frame starts with


@dataclass(frozen=True)
class Store:
    """What a directory of runs holds. `runs` has one run per (method, cell, seed): of several, the newest numbers."""

    root: Path
    runs: pd.DataFrame
    metrics: pd.DataFrame
    cells: tuple[Cell, ...]  # in reading order
    notes: tuple[str, ...] = ()  # what a reader of the tables must know about the store
    common: Settings = field(default_factory=dict)  # the settings that all runs share, by their dotted keys
    names: Mapping[str, str] = field(default_factory=dict)  # what tables call the rows
    order: tuple[str, ...] = ()  # of the rows, where somebody chose one

    @cached_property
    def methods(self) -> list[str]:
        """Row labels: the methods in alphabetical order, then what they are measured against (oracle, centralised)."""
        return _in_order(self.runs)

    def name(self, method: str) -> str:
        """What tables call a row: `FedCorr`, where the command line says `fedcorr`."""
        return self.names.get(method, method)

    def renamed(self, names: Mapping[str, str]) -> Store:
        """The same with other names of rows in tables and figures; rows go by either name."""
        changed = {**self.names, **{self.row(old): new for old, new in names.items()}}
        twice = [name for name, rows in Counter(changed.values()).items() if rows > 1]
        if twice:
            raise UserError(f"two rows would be called {twice[0]!r}; give each a name of its own")
        return replace(self, names=changed)

    def only(self, rows: Sequence[str]) -> Store:
        """These rows alone, in this order; columns in which none of them was run are left out."""
        chosen = tuple(dict.fromkeys(map(self.row, rows)))
        runs = self.runs[self.runs["method"].isin(chosen)].reset_index(drop=True)
        metrics = self.metrics[self.metrics["method"].isin(chosen)].reset_index(drop=True)
        cells = tuple(cell for cell in self.cells if (runs["cell"] == cell.label).any())
        metrics["method"] = metrics["method"].cat.set_categories(_in_order(runs))
        metrics["cell"] = metrics["cell"].cat.set_categories([cell.label for cell in cells])
        return replace(self, runs=runs, metrics=metrics, cells=cells, order=chosen)

    def row(self, asked: str) -> str:
        """The row that somebody names, by what the command line or what tables call it."""
        found = [method for method in self.methods if asked in (method, self.name(method))]
        if not found:
            raise UserError(f"there is no row called {asked!r} in {self.root}; {nearest(asked, self.methods)}")
        return found[0]

    def kind(self, method: str) -> str:
        """`method`, `oracle` or `centralised`."""
        return str(self.runs.loc[self.runs["method"] == method, "kind"].iloc[0])

    @property
    def title(self) -> str:
        """The experiment if the runs share one, else the name of the directory."""
        names = set(self.runs["experiment"]) - {"", "None", "null"}
        return str(names.pop()) if len(names) == 1 else self.root.resolve().name

    @cached_property
    def levels(self) -> dict[str, tuple[float, float]]:
        """Of each cell the mean share of wrong labels over clients and seeds: realised and nominal, NaN if unknown."""
        runs = self.runs[self.runs["kind"] == "method"]
        means = {}
        for cell in self.cell_labels:
            here = runs[runs["cell"] == cell]
            known = [[v for run in here[name] for v in run if not np.isnan(v)] for name in ("realised", "nominal")]
            means[cell] = tuple(float(np.mean(levels)) if levels else np.nan for levels in known)
        return means  # type: ignore[return-value]

    @property
    def cell_labels(self) -> list[str]:
        return [cell.label for cell in self.cells]

    def facts(self, run_id: str, name: str) -> list[dict[str, Any]]:
        """What one run recorded under `name`, in order: `step`, `t`, `stage` and `value`."""
        return [fact for fact in _facts(self._paths[run_id]) if fact["name"] == name]

    @cached_property
    def _paths(self) -> dict[str, Path]:
        return {
            str(run_id): Path(str(path)) for run_id, path in zip(self.runs["run_id"], self.runs["path"], strict=True)
        }

    def diagnostics(self, *names: str) -> pd.DataFrame:
        """Facts of the finished runs: run_id, method, cell, seed, step, t, stage, name, value; all without names."""
        finished = self.runs[self.runs["status"] == Status.FINISHED]
        rows = [
            {**dict(zip(KEYS, key, strict=True)), **fact}
            for *key, path in finished[[*KEYS, "path"]].itertuples(index=False)
            for fact in _facts(Path(path))
            if not names or fact["name"] in names
        ]
        return pd.DataFrame(rows, columns=[*KEYS, "step", "t", "stage", "name", "value"])


def _facts(path: Path) -> tuple[dict[str, Any], ...]:
    """What a run recorded about its clients; nothing if that cannot be read, since the numbers do not depend on it."""
    try:
        return read_lines(path, DIAGNOSTICS)
    except (OSError, ValueError) as error:
        log.warning("%s: its diagnostics are left out: %s", path.name, in_words(error))
        return ()


def load(runs_dir: Path | str, *more: Path | str) -> Store:
    """Read every run folder below `runs_dir` and further stores; folders without a `config.yaml` are not runs.

    A run that several stores hold is taken once: where it is finished, if it is anywhere.
    """
    roots = [Path(one) for one in (runs_dir, *more)]
    for one in roots:
        if not one.is_dir():
            raise UserError(f"there is no directory {one}; give the runs_dir that `fnll run` or `fnll sweep` wrote to")
    root = roots[0]
    every = [read_run(file.parent) for one in roots for file in sorted(one.glob("*/config.yaml"))]
    best = sorted(every, key=lambda run: (run.status in DONE, run.status is not Status.UNREADABLE))  # the last counts
    kept = {run.run_id: run for run in best}
    found = [run for run in every if kept[run.run_id] is run]
    readable = [run for run in found if run.status is not Status.UNREADABLE]
    if not readable:
        raise UserError(_nothing_in(root))
    runs, notes = _last_code(readable)
    places, cells = arrange(runs)
    frame, superseded = _newest(_runs_frame(runs, places))
    notes += _notes(frame, superseded, [run for run in found if run.status is Status.UNREADABLE])
    metrics = _metrics_frame(runs, frame, [cell.label for cell in cells])
    return Store(root, frame, metrics, tuple(cells), tuple(notes), common_settings(runs), _names(runs, places))


def _names(runs: Sequence[StoredRun], places: Sequence[Place]) -> dict[str, str]:
    """What tables call each row; a name that two rows would share is left to neither."""
    found = {
        place.method: display_name(run) + place.method.removeprefix(method_name(run))
        for run, place in zip(runs, places, strict=True)
    }
    shared = Counter(found.values())
    return {row: name if shared[name] == 1 else row for row, name in found.items()}


def _last_code(runs: Sequence[StoredRun]) -> tuple[list[StoredRun], list[str]]:
    """Of every plugin's code only the version that was run last, so that no table mixes versions."""
    in_time = sorted(runs, key=lambda run: str(run.manifest.get("started")))
    last = {name: digest for run in in_time for name, digest in _code(run)}
    current = [run for run in runs if all(last[name] == digest for name, digest in _code(run))]
    if len(current) == len(runs):
        return current, []
    names = ", ".join(sorted({name for run in runs for name, digest in _code(run) if last[name] != digest}))
    left_out = len(runs) - len(current)
    return current, [f"{left_out} runs of other versions of {names} are not shown, only those of the one run last."]


def _code(run: StoredRun) -> ItemsView[str, str]:
    return dict(run.manifest.get("code") or {}).items()


def _nothing_in(root: Path) -> str:
    deeper = sorted({str(file.parent.parent) for file in root.glob("*/*/config.yaml")})
    hint = f"; there are runs in {', '.join(deeper[:3])}" if deeper else f"; `fnll sweep runs_dir={root}` makes some"
    return f"there are no readable runs in {root}{hint}"


def _runs_frame(runs: Sequence[StoredRun], places: Sequence[Place]) -> pd.DataFrame:
    varied = [
        k for k in differing([run.config for run in runs]) if not k.startswith(("logger.", "executor.", "hydra."))
    ]
    rows = [_run_row(run, place, varied) for run, place in zip(runs, places, strict=True)]
    frame = pd.DataFrame(rows)
    frame["status"] = pd.Categorical(frame["status"], [status.value for status in Status])
    return frame


def _run_row(run: StoredRun, place: Place, varied: Sequence[str]) -> dict[str, Any]:
    manifest, summary, cell = run.manifest, run.summary, place.cell
    row: dict[str, Any] = {
        "run_id": run.run_id,
        "method": place.method,
        "cell": cell.label,
        "seed": run.config.get("seed", summary.get("seed")),
        "status": run.status.value,
        "reason": run.reason,
        "kind": place.kind,
        "dataset": cell.dataset,
        "partition": cell.partition,
        "noise": cell.noise,
        "other": cell.other,
        "choice": method_name(run),
        "experiment": run.choices.get("experiment", ""),
        "protocol": str(run.config.get("protocol", "shared")),
        "origin": str(manifest.get("origin") or summary.get("origin") or ""),
        "fingerprint": str(manifest.get("fingerprint") or summary.get("fingerprint") or ""),
        "numbers": int(manifest.get("numbers") or 0),
        "rounds": int(run.config.get("rounds") or 0),
        "exact": bool(summary.get("exact", True)),
        "clients": manifest.get("num_clients", run.config.get("num_clients")),
        "samples": manifest.get("samples"),
        "data": str(manifest.get("dataset") or ""),
        "digest": _digest(run),
        "warnings": tuple((w.get("logger", ""), w["text"], w.get("about", "")) for w in run.warnings),
        "client_names": tuple(map(str, manifest.get("client_names") or ())),
        "nominal": _levels(manifest.get("nominal")),
        "realised": _levels(manifest.get("realised")),
        "privileges": tuple(manifest.get("privileges") or ()),
        "paper": str(manifest.get("paper") or ""),
        "commit": str(manifest.get("commit") or ""),
        "started": str(manifest.get("started") or ""),
        "seconds": summary.get("time/total_s", np.nan),
        "command": run.command,
        "verified": run.verified,
        "path": str(run.path),
        "manifest": json.dumps(manifest, sort_keys=True),
    }
    return row | {key: run.config.get(key) for key in varied if key not in row}


def _digest(run: StoredRun) -> str:
    """A hash of all its scores, to the last bit: runs with the same one evaluated the same models."""
    scores = [[step.get(key) for key in SCORES] for step in run.steps]
    return hashlib.blake2b(json.dumps(scores).encode(), digest_size=8).hexdigest() if scores else ""


def _levels(values: Sequence[float | None] | None) -> tuple[float, ...]:
    """A noise level per client; NaN where there is none."""
    return tuple(np.nan if v is None else float(v) for v in values or ())


def _newest(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """One run per (method, cell, seed): newer numbers first, then finished ones, then the latest."""
    key = ["method", "cell", "seed"]
    ranked = frame.assign(done=frame["status"].isin(DONE)).sort_values(["numbers", "done", "started", "run_id"])
    kept = ranked.drop_duplicates(key, keep="last").drop(columns="done").sort_values(key)
    return kept.reset_index(drop=True), len(frame) - len(kept)


def _metrics_frame(runs: Sequence[StoredRun], frame: pd.DataFrame, cells: Sequence[str]) -> pd.DataFrame:
    names = [*KEYS, "kind", "status"]
    keys = {row[0]: row for row in frame[names].itertuples(index=False, name=None)}
    rows = [
        dict(zip(names, keys[run.run_id], strict=True)) | _step(step)
        for run in runs
        if run.run_id in keys
        for step in run.steps
    ]
    metrics = pd.DataFrame(rows, columns=None if rows else [*names, "step", "stage", "test/accuracy"])
    # Categories keep the order of methods and cells, and with it their colours, in every part of the frame.
    metrics["method"] = pd.Categorical(metrics["method"], _in_order(frame))
    metrics["cell"] = pd.Categorical(metrics["cell"], list(cells))
    if {"comm/up_bytes", "comm/down_bytes"} <= set(metrics):
        metrics["comm/bytes"] = metrics["comm/up_bytes"] + metrics["comm/down_bytes"]
    return metrics


def _in_order(runs: pd.DataFrame) -> list[str]:
    kinds = dict(zip(runs["method"], runs["kind"], strict=True))
    return sorted(kinds, key=lambda method: (kinds[method] != "method", method))


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl with null as NaN, so that a column of numbers stays one."""
    return {key: np.nan if value is None else value for key, value in step.items()}


def _notes(frame: pd.DataFrame, superseded: int, unreadable: Sequence[StoredRun]) -> list[str]:
    notes = []
    if superseded:
        notes.append(f"{superseded} other runs of the same method, cell and seed are not shown.")
    numbers = sorted(set(frame.loc[frame["numbers"] > 0, "numbers"]))
    if len(numbers) > 1:
        notes.append(f"The runs mix fnll.NUMBERS {', '.join(map(str, numbers))}: results changed between them.")
    done = frame["status"].isin(DONE)
    if unverified := int((done & ~frame["verified"].astype(bool)).sum()):
        notes.append(f"{unverified} finished runs are of an older format without hashes: unverified.")
    for run in unreadable:
        notes.append(f"{run.run_id} cannot be read ({run.reason}).")
    return notes
