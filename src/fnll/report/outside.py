"""Curves that somebody else logged, laid over ours: `fnll report RUNS --reference-curves FILE`.

The file is a CSV (also .gz) with a line per evaluation: `method`, `accuracy` (a share or per cent), `trial`, `round`
(or `row`), and any settings that tell its cells apart, as `partition`, `rho` or `noise.rho`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fnll.errors import UserError
from fnll.harness.metrics import LAST
from fnll.harness.status import Status
from fnll.published import matches
from fnll.report.folders import read_run
from fnll.report.published import described
from fnll.report.store import Store
from fnll.report.table import Entry, Row, Table, signed

COUNTS = ("round", "row", "step")  # what the evaluations may be counted by
SHORT = {"rho": "noise.rho", "tau": "noise.tau"}  # settings that papers write without their group
METRIC = "test/accuracy"
STEP = "step"  # our place on the common grid
RULES = ("best", "last10")


@dataclass(frozen=True)
class Overlay:
    """An outside record of one of our rows in one of our cells."""

    key: str  # of our row, which gives it its colour
    method: str  # our row by its name
    cell: str
    ours: pd.DataFrame  # run_id, x, y: shares over our rounds
    theirs: pd.DataFrame  # trial, x, y: aligned with the end of ours, since some logs begin late


def read_curves(path: Path) -> pd.DataFrame:
    """The file as a frame with `method`, `trial`, `count`, `accuracy` (a share) and settings."""
    try:
        frame = pd.read_csv(path, comment="#")
    except (OSError, ValueError) as error:
        raise UserError(f"--reference-curves {path}: this is not a CSV file that can be read ({error})") from error
    count = next((name for name in COUNTS if name in frame), None)
    missing = [name for name in ("method", "accuracy") if name not in frame]
    if missing or count is None or not len(frame):
        lacks = ", ".join([*missing, *(["round"] if count is None else [])]) or "any line"
        raise UserError(
            f"--reference-curves {path}: the file lacks {lacks}; it needs the columns method, accuracy, round and, "
            "where there are several, trial and the settings of its cells, as partition, noise.rho"
        )
    frame = frame.rename(columns={count: "count", **SHORT})
    frame["accuracy"] = frame["accuracy"].astype(float) / (100.0 if frame["accuracy"].max() > 1 else 1.0)
    return frame if "trial" in frame else frame.assign(trial=0)


def overlays(store: Store, path: Path) -> list[Overlay]:
    """Where the file's methods and settings are those of our finished runs."""
    frame = read_curves(path)
    keys = [key for key in map(str, frame) if key not in ("method", "trial", "count", "accuracy")]
    finished = store.runs[store.runs["status"] == Status.FINISHED]
    settings = {str(row.run_id): described(read_run(Path(str(row.path)))) for row in finished.itertuples()}
    found = []
    for (method, cell), runs in finished.groupby(["method", "cell"], sort=False):
        mine = settings[str(runs["run_id"].iloc[0])]
        theirs = _agreeing(frame, keys, mine)
        if len(theirs):
            rounds = int(runs["rounds"].max())
            steps = store.metrics[store.metrics["run_id"].isin(runs["run_id"])]
            ours = steps.rename(columns={STEP: "x", METRIC: "y"})[["run_id", "x", "y"]]
            name = store.name(str(method))
            found.append(Overlay(str(method), name, str(cell), ours, _aligned(theirs, rounds)))
    if not found:
        names = ", ".join(sorted(set(frame["method"].astype(str))))
        raise UserError(
            f"--reference-curves {path}: no finished run in {store.root} has the method and the settings of one of its "
            f"curves (methods {names}; told apart by {', '.join(keys) or 'nothing'})"
        )
    return found


def _agreeing(frame: pd.DataFrame, keys: list[str], run: Mapping[str, Any]) -> pd.DataFrame:
    columns = ["method", *keys]
    points = frame[columns].drop_duplicates()
    for point in points.to_dict("records"):
        if matches({str(key): value for key, value in point.items()}, run):
            return frame[np.logical_and.reduce([frame[key] == point[key] for key in columns])]
    return frame.iloc[:0]


def _aligned(theirs: pd.DataFrame, rounds: int) -> pd.DataFrame:
    """Their evaluations on our axis: the last one of a trial is at our last round."""
    last = theirs.groupby("trial")["count"].transform("max")
    return pd.DataFrame({"trial": theirs["trial"], "x": rounds - (last - theirs["count"]), "y": theirs["accuracy"]})


def reference_table(found: list[Overlay], path: Path) -> Table:
    """Best and last ten of both, with the difference."""
    rows, tidy = [], []
    for overlay in found:
        entries = [Entry(overlay.cell)]
        for rule in RULES:
            ours, theirs = (
                _numbers(part, key, rule) for part, key in ((overlay.ours, "run_id"), (overlay.theirs, "trial"))
            )
            gap = 100 * (np.mean(ours) - np.mean(theirs))
            entries += [Entry(_shown(ours)), Entry(_shown(theirs)), Entry(signed(float(gap)))]
            tidy.append(
                (overlay.method, overlay.cell, rule, np.mean(ours), len(ours), np.mean(theirs), len(theirs), gap)
            )
        rows.append(Row(overlay.method, tuple(entries)))
    heads = [f"{rule}, {whose}" for rule in RULES for whose in ("ours", "theirs", "difference")]
    names = ["method", "cell", "select", "ours", "n", "theirs", "trials", "difference"]
    return Table(
        "reference_curves",
        f"Test accuracy (%) beside the curves of {path.name}",
        ("method", "scenario", *heads),
        tuple(rows),
        (f"Mean ± standard deviation over trials (n). best: of a whole curve; last10: mean of its last {LAST}.",),
        pd.DataFrame(tidy, columns=names),
        words=True,
    )


def _numbers(curves: pd.DataFrame, key: str, rule: str) -> np.ndarray:
    by_trial = [group.sort_values("x")["y"].to_numpy() for _, group in curves.groupby(key)]
    return np.array([values.max() if rule == "best" else values[-LAST:].mean() for values in by_trial])


def _shown(values: np.ndarray) -> str:
    spread = f" ± {100 * values.std(ddof=1):.2f}" if len(values) > 1 else ""
    return f"{100 * values.mean():.2f}{spread} ({len(values)})"
