"""clients.csv, samples.csv, and the labels that a verdict suggests in the format of the input."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pandas as pd

from fnll.harness.integrity import CLIENTS, SAMPLES
from fnll.harness.prepare import Run
from fnll.harness.verdicts import Verdict, clients_table, doubt, samples_table
from fnll.scenario.datasets.own_rows import guarded, read_frame, unguarded
from fnll.system.files import write_atomic

log = logging.getLogger(__name__)

LABELS = "labels"


def write_verdict(run: Run, folder: Path, verdict: Verdict) -> list[Path]:
    """Write clients.csv and samples.csv; a suggestion that would do harm is said aloud."""
    if why := doubt(run, verdict):
        log.warning("do not take the suggested labels of %s: %s", run.request.name, why)
    log.info("samples judged by %s: see %s and %s", verdict.source, CLIENTS, SAMPLES)
    tables = {CLIENTS: clients_table(run, verdict), SAMPLES: samples_table(run, verdict)}
    for name, table in tables.items():
        write_atomic(folder / name, table.to_csv(index=False))
    return [folder / name for name in tables]


def corrected(run: Run, verdict: Verdict) -> tuple[str, pd.DataFrame]:
    """The input with the suggested labels in place of the observed ones, and the suffix of its format.

    A data set that is no table gives a table of its own: file, label, client.
    """
    names = run.dataset.class_names or tuple(map(str, range(run.scenario.num_classes)))
    new = {i: guarded(names[c]) for i, c in zip(verdict.index.tolist(), verdict.suggested.tolist(), strict=True)}
    file: Any = run.cfg.dataset.get("file")
    if file is None:
        files = run.dataset.names or tuple(map(str, range(len(run.scenario.labels))))
        rows = [
            (guarded(files[i]), new[i], guarded(run.scenario.called(k)))
            for i, k in zip(verdict.index.tolist(), verdict.owner.tolist(), strict=True)
        ]
        return ".csv", pd.DataFrame(rows, columns=["file", "label", "client"])
    path = Path(str(file)).expanduser()
    return path.suffix.lower(), replaced(read_frame(path), {run.dataset.names[i]: label for i, label in new.items()})


def replaced(frame: pd.DataFrame, new: dict[str, str]) -> pd.DataFrame:
    """A table with new labels for the samples of these names; everything else as it was."""
    import posixpath

    if "x" in frame:
        first = 2 if isinstance(frame["x"].iloc[0], str) else 1
        keys = [str(i + first) for i in range(len(frame))]
    else:
        keys = [posixpath.normpath(unguarded(name)) for name in frame["file"]]
    return frame.assign(label=[new.get(key, old) for key, old in zip(keys, frame["label"], strict=True)])


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a table in the format that its name says."""
    content = frame.to_parquet(index=False) if path.suffix.lower() == ".parquet" else frame.to_csv(index=False)
    write_atomic(path, content)
