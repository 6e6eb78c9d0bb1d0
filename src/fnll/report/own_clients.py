"""Clients that have names: what each method says about them, from the clients.csv of runs on one's own data."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from fnll.harness.integrity import CLIENTS
from fnll.harness.status import Status
from fnll.report.store import Store
from fnll.report.table import Table, listing, texts
from fnll.scenario.datasets.own_rows import guarded, unguarded
from fnll.system.foreign import text

log = logging.getLogger(__name__)


def clients_table(store: Store) -> Table | None:
    """Estimated noise level and verdict of every client, by method, mean over seeds; None if no client has a name."""
    found = [
        frame.assign(cell=str(run.cell), method=str(run.method))
        for run in store.runs[store.runs["status"] == Status.FINISHED].itertuples()
        if (frame := _read(Path(str(run.path)))) is not None
    ]
    if not found:
        return None
    every = pd.concat(found)
    methods = [method for method in store.methods if (every["method"] == method).any()]
    several = every["cell"].nunique() > 1
    rows = []
    for (cell, client), here in every.groupby(["cell", "client"], sort=True):
        said = [_said(here[here["method"] == method]) for method in methods]
        size = int(np.nan_to_num(here["size"].iloc[0]))
        rows.append(texts(str(client), *([str(cell)] if several else []), f"{size:,}", *said))
    columns = ("client", *(["scenario"] if several else []), "samples", *(store.name(method) for method in methods))
    note = (
        "Estimated share of wrong labels, mean over seeds; in brackets the share of seeds that call the client noisy. "
        "Where a method gives no verdict on samples it is that of confident learning on its final model."
    )
    table = listing("clients", "Clients by name", columns, rows, note)
    return replace(table, data=table.data.assign(client=table.data["client"].map(guarded)))


def _said(rows: pd.DataFrame) -> str:
    if not len(rows):
        return "–"
    level, called = rows["noise_level"].mean(), rows["noisy"].mean()
    return "–" if np.isnan(level) else f"{level:.0%} ({called:.0%} noisy)"


def _read(folder: Path) -> pd.DataFrame | None:
    """A run's clients.csv; None if there is none, or if it is not what a run writes."""
    try:
        frame = pd.read_csv(io.StringIO(text(folder / CLIENTS)), dtype=str, keep_default_na=False)
        level = pd.to_numeric(frame["noise_level"], errors="coerce")
        size, noisy = pd.to_numeric(frame["size"], errors="coerce"), frame["noisy"] == "True"
        return pd.DataFrame(
            {"client": frame["client"].map(unguarded), "size": size, "noise_level": level, "noisy": noisy}
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        log.warning("%s: its %s is left out: %s", folder.name, CLIENTS, error)
        return None
