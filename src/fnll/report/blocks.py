"""Statistics over scenarios: each cell is one block, its value a method's mean there (Demšar 2006).

Five seeds of one cell cannot reach p < 0.05 in a rank test and are no sample of scenarios; six cells are the fewest
that can (2 / 2⁶ = 0.031, before correction).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import friedmanchisquare, wilcoxon
from statsmodels.stats.multitest import multipletests

FEWEST = 6  # blocks


@dataclass(frozen=True)
class Ranking:
    """Average ranks (1 is best) over complete blocks, and whether methods differ at all."""

    ranks: pd.Series  # method → average rank, best first
    blocks: tuple[str, ...]  # cells in which every ranked method has a value
    left_out: tuple[str, ...]  # methods with too many missing cells
    friedman: float  # p; NaN for fewer than three methods
    pairs: pd.DataFrame  # Wilcoxon for all pairs: method, other, n, p, p_holm

    def p_matrix(self) -> pd.DataFrame:
        """Holm-corrected p of all pairs as a symmetric matrix, 1 on the diagonal."""
        matrix = pd.DataFrame(1.0, index=self.ranks.index, columns=self.ranks.index)
        for method, other, p in self.pairs[["method", "other", "p_holm"]].itertuples(index=False):
            matrix.loc[method, other] = matrix.loc[other, method] = p
        return matrix


def block_values(cells: pd.DataFrame, *, higher: bool = True) -> pd.DataFrame:
    """Cells × competing methods, turned so that more is better. NaN is missing; −inf is a cell with a diverged run."""
    competing = cells[cells["kind"] == "method"]
    wide = {
        name: competing.pivot(index="cell", columns="method", values=name)  # noqa: PD010 (there are no duplicates)
        for name in ("mean", "diverged")
    }
    return (wide["mean"] * (1 if higher else -1)).mask(wide["diverged"].fillna(0) > 0, -np.inf)


def rank(cells: pd.DataFrame, *, higher: bool = True) -> Ranking | None:
    """The ranking over at least six complete blocks and two methods; None if the store cannot give one."""
    values, left_out = _complete(block_values(cells, higher=higher))
    if len(values) < FEWEST or values.shape[1] < 2:
        return None
    ranks = values.rank(axis="columns", ascending=False)
    pairs = signed_rank(values, list(combinations(values.columns, 2)))
    return Ranking(ranks.mean().sort_values(), tuple(map(str, values.index)), left_out, _friedman(ranks), pairs)


def _friedman(ranks: pd.DataFrame) -> float:
    if ranks.shape[1] < 3:
        return float("nan")
    if (ranks.nunique(axis="columns") == 1).all():
        return 1.0  # nothing differs anywhere, where the statistic would be 0/0
    return float(friedmanchisquare(*ranks.to_numpy().T).pvalue)


def against(cells: pd.DataFrame, reference: str, *, higher: bool = True) -> pd.DataFrame:
    """Wilcoxon signed-rank test of every method against `reference` over the cells both have, Holm-corrected.

    Methods that share fewer than six cells with the reference have no p.
    """
    values = block_values(cells, higher=higher)
    others = [method for method in values.columns if method != reference]
    return signed_rank(values, [(method, reference) for method in others] if reference in values else [])


def signed_rank(values: pd.DataFrame, pairs: list[tuple[str, str]]) -> pd.DataFrame:
    """The test for each pair of columns, on the rows both have: method, other, n, median, p, p_holm.

    `median` is the middle of the differences, positive where `method` is better. p is NaN below six rows.
    """
    rows = []
    for method, other in pairs:
        both = values[[method, other]].dropna()
        d = _differences(both[method].to_numpy(), both[other].to_numpy())
        rows.append((method, other, len(d), float(np.median(d)) if len(d) else np.nan, _p(d)))
    table = pd.DataFrame(rows, columns=["method", "other", "n", "median", "p"]).astype({"p": float})
    tested = table["p"].notna()
    table["p_holm"] = np.nan
    if tested.any():
        table.loc[tested, "p_holm"] = multipletests(table.loc[tested, "p"], method="holm")[1]
    return table


def smallest_p(n: int, comparisons: int) -> float:
    """The smallest Holm-corrected p that `n` blocks can give one of `comparisons`: all differences of one sign."""
    return float(min(1.0, comparisons * 2 * 0.5**n))


def _differences(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """mine − theirs; ±inf where one side diverged, 0 where both did."""
    with np.errstate(invalid="ignore"):
        return np.where(mine == theirs, 0.0, mine - theirs)


def _p(d: np.ndarray) -> float:
    if len(d) < FEWEST:
        return float("nan")
    if not np.any(d):
        return 1.0
    finite = np.abs(d[np.isfinite(d)])
    beyond = 1.0 + finite.max(initial=0.0)  # a divergence outranks every finite difference; only ranks matter
    return float(wilcoxon(np.clip(d, -beyond, beyond)).pvalue)


def _complete(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The blocks in which no method is missing; while these are too few, the method with the most gaps is left out."""
    left_out: list[str] = []
    while len(values.dropna()) < FEWEST and values.shape[1] > 2 and values.isna().to_numpy().any():
        gaps = str(values.isna().sum().idxmax())
        left_out.append(gaps)
        values = values.drop(columns=gaps)
    return values.dropna(), tuple(left_out)
