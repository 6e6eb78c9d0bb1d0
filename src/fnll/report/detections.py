"""Detection of noisy clients over many mixtures of each run's indicator: FedNoRo's table 3 and figure 4."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from fnll.errors import UserError
from fnll.harness.status import Status
from fnll.report.fednoro_table3 import Rates
from fnll.report.figures.papers import warmups
from fnll.report.mixtures import indicators, rates_of
from fnll.report.store import Store
from fnll.report.table import Table, listing, texts

LENGTHS = ("method.warmup", "method.ramp_")  # settings of FedNoRo that follow the length of the warm-up


@dataclass(frozen=True)
class Detections:
    """What mixtures with many seeds find in a store."""

    store: Store
    mixtures: int  # per indicator
    rates: pd.DataFrame  # run_id, method, cell, t, recall, precision, matching

    @classmethod
    def of(cls, store: Store, mixtures: int) -> Detections:
        """Of every finished run that recorded an indicator; some seconds for each the first time, then cached."""
        rows = []
        for run in store.runs[store.runs["status"] == Status.FINISHED].itertuples():
            for indicator in indicators(Path(str(run.path)))[-1:]:
                found = rates_of(indicator, range(mixtures))
                rows.append((run.run_id, run.method, run.cell, indicator.t, *found))
        if not rows:
            raise UserError(
                f"--mixtures {mixtures}: no finished run in {store.root} recorded an indicator; only FedNoRo does, "
                "once its warm-up is over, on data whose true labels are known"
            )
        return cls(store, mixtures, pd.DataFrame(rows, columns=["run_id", "method", "cell", "t", *Rates._fields]))

    @property
    def warmups(self) -> int:
        """How many lengths of the warm-up the figure has."""
        return int(self.rates.loc[self.rates["run_id"].isin(self._alike()), "t"].nunique())

    @property
    def table(self) -> Table:
        """Re, Pr and MR by row and cell, mean over runs."""
        names = list(Rates._fields)
        grouped = self.rates.groupby(["method", "cell", "t"], sort=False)
        rows = [
            texts(str(method), str(cell), str(t), *(f"{100 * v:.2f}" for v in runs[names].mean()), str(len(runs)))
            for (method, cell, t), runs in grouped
        ]
        columns = ("method", "scenario", "T₁", "Re (%)", "Pr (%)", "MR (%)", "runs")
        note = (
            f"{self.mixtures:,} mixtures with different seeds over the last indicator of each run (FedNoRo's table 3 "
            "has 10,000); MR is the share of mixtures that find exactly the clients with a wrong label. Mean over runs."
        )
        return listing("mixtures", "Detection of noisy clients over mixtures", columns, rows, note)

    def figure(self) -> Figure:
        """The rates against the rounds of warm-up, of the runs that differ in nothing else."""
        return warmups(self.store, self._alike(), self.mixtures)

    def _alike(self) -> list[str]:
        """The runs of one scenario and of the same settings but for the warm-up that have most lengths of it."""
        known = self.rates.merge(self.store.runs, on="run_id", suffixes=("", "_"))
        names = [str(key) for key in known]
        settings = [key for key in names if key.startswith("method.") and not key.startswith(LENGTHS)]
        places = known[["cell", *settings]].apply(lambda row: repr(row.to_list()), axis=1)
        most = known.groupby(places, sort=False)["t"].nunique().idxmax()
        return [str(run_id) for run_id in known.loc[places == most, "run_id"]]
