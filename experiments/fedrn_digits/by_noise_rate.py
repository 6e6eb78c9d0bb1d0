"""On which clients does a selection of samples work? Label precision and recall against noise rate, from records alone.

    python experiments/fedrn_digits/by_noise_rate.py RUNS              bands of noise rates
    python experiments/fedrn_digits/by_noise_rate.py RUNS --clients    every client by itself

RUNS is the runs_dir of `fnll sweep experiment=fedrn_digits`. Counted are the participations in the last evaluated
rounds, pooled over seeds. `noise` is the share of wrong labels these clients hold: a selection helps where its
precision exceeds 1 − noise. `neighbours` is the mean noise of the clients whose networks voted with theirs (FedRN).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from fnll.report.figures.clients import levels
from fnll.report.store import Store, load

BANDS = (0.0, 0.2, 0.4, 0.5, 0.6, 1.0)  # above 0.5 most of a client's labels are wrong


def participations(store: Store, last: int) -> pd.DataFrame:
    """A row per client in each of the last evaluated rounds: counts of samples (positive: called noisy), and noise."""
    judged = store.diagnostics("sample_detection")  # of finished runs
    parts = [_of_run(store, str(run_id), facts.tail(last)) for run_id, facts in judged.groupby("run_id")]
    return pd.concat(parts).merge(store.runs[["run_id", "method", "cell"]], on="run_id") if parts else judged


def _of_run(store: Store, run_id: str, judged: pd.DataFrame) -> pd.DataFrame:
    noise = levels(store, run_id)
    panels = {fact["step"]: fact["value"] for fact in store.facts(run_id, "neighbours")}
    parts = []
    for at, counts in zip(judged["step"], judged["value"], strict=True):
        voters = [panels.get(at, {}).get(str(client), []) for client in counts["client"]]
        neighbours = [noise[ids].mean() if ids else np.nan for ids in voters]
        parts.append(pd.DataFrame(counts).assign(run_id=run_id, rate=noise[counts["client"]], neighbours=neighbours))
    return pd.concat(parts)


def quality(rows: pd.DataFrame) -> pd.Series:
    """What a selection came to over some participations."""
    found, accused, missed, kept = (rows[name].sum() for name in ("tp", "fp", "fn", "tn"))
    return pd.Series({
        "clients": rows["client"].nunique(),
        "noise": (found + missed) / (found + accused + missed + kept),
        "precision": kept / max(kept + missed, 1),
        "recall": kept / max(kept + accused, 1),
        "neighbours": rows["neighbours"].mean(),
    })  # fmt: skip


def main() -> None:
    """Print a table for every method that selects samples and every cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--last", type=int, default=10, help="evaluated rounds of each run that count (default 10)")
    parser.add_argument("--clients", action="store_true", help="a line per client instead of bands of noise rates")
    options = parser.parse_args()
    rows = participations(load(options.runs), options.last)
    if rows.empty:
        raise SystemExit(f"no run in {options.runs} told clean samples from noisy ones; method=fedrn does")
    rows["group"] = rows["client"] if options.clients else pd.cut(rows["rate"], BANDS, include_lowest=True)
    for (method, cell), part in rows.groupby(["method", "cell"], observed=True):
        table = {str(group): quality(some) for group, some in part.groupby("group", observed=True)}
        frame = pd.DataFrame({**table, "all": quality(part)}).T.astype({"clients": int})
        print(f"\n{method}, {cell} (runs: {part['run_id'].nunique()})\n{frame.to_string(float_format='{:.3f}'.format)}")


if __name__ == "__main__":
    main()
