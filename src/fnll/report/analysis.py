"""All statistics of one metric under one selection rule: what the tables, the figures and the page are made from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from fnll.errors import UserError, nearest
from fnll.plotting.palette import Look, looks
from fnll.report import blocks, identical, stats
from fnll.report.blocks import Ranking
from fnll.report.select import Rule, Scores, scores
from fnll.report.store import Store

REFERENCE = "fedavg"
ORACLES = ("oracle", "oracle_true_labels", "oracle_drop_noisy")  # the first that was run is what a gap is measured to


@dataclass(frozen=True)
class Analysis:
    """The comparison of a store's methods. Everything is computed when first asked for."""

    store: Store
    scores: Scores
    reference: str | None  # the row that differences are taken to; None if the store has no such row
    oracle: str | None

    @property
    def metric(self) -> str:
        return self.scores.metric

    @property
    def rule(self) -> Rule:
        return self.scores.rule

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The statistics of every (method, cell); a row that is another one bit for bit wins nothing."""
        table = stats.cells(self.scores)
        pairs = zip(table["method"], table["cell"], strict=True)
        table["twin"] = [self.twins.get((str(method), str(cell)), "") for method, cell in pairs]
        table.loc[table["twin"] != "", ["best", "tied"]] = False
        return table

    @cached_property
    def twins(self) -> dict[tuple[str, str], str]:
        """Rows whose runs in a cell are those of another row bit for bit: (method, cell) → the row that they are."""
        return identical.twins(self.store, self.rows)

    @cached_property
    def differences(self) -> pd.DataFrame:
        return stats.differences(self.scores, self.reference or "")

    @cached_property
    def recovered(self) -> pd.DataFrame:
        return stats.recovered(self.scores, self.reference or "", self.oracle or "")

    @cached_property
    def ranking(self) -> Ranking | None:
        return blocks.rank(self.cells, higher=self.scores.higher)

    @cached_property
    def against_reference(self) -> pd.DataFrame:
        return blocks.against(self.cells, self.reference or "", higher=self.scores.higher)

    @cached_property
    def looks(self) -> dict[str, Look]:
        """How each row is drawn."""
        return looks(self.store.methods, [m for m in self.store.methods if self.store.kind(m) != "method"])

    @property
    def competing(self) -> list[str]:
        """Methods, without what they are measured against."""
        return [method for method in self.rows if self.store.kind(method) == "method"]

    @cached_property
    def rows(self) -> list[str]:
        """Row labels in reading order: the reference, the other methods, then oracle and centralised rows."""
        order = {method: i for i, method in enumerate(self.store.order)}
        return sorted(
            self.store.methods,
            key=lambda m: (self.store.kind(m) != "method", order.get(m, 0), not order and m != self.reference, m),
        )


def analyse(
    store: Store, metric: str = "test/accuracy", rule: str = "last10", reference: str | None = None
) -> Analysis:
    """Compare the methods of `store` by `metric` under `rule`; the reference is `fedavg` unless another is named."""
    if reference is not None and reference not in store.methods:
        if reference not in store.names.values():
            raise UserError(
                f"--reference {reference}: no such row in {store.root}; {nearest(reference, store.methods)}"
            )
        reference = store.row(reference)
    chosen = reference or (REFERENCE if REFERENCE in store.methods else None)
    oracle = next((name for name in ORACLES if name in store.methods), None)
    return Analysis(store, scores(store, metric, rule), chosen, oracle)
