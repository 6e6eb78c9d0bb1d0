"""Re, Pr and MR over many mixtures (FedNoRo, table 3 and figure 4) as the report shows them; each is computed once.

Ten thousand mixtures of twenty clients are a second or two of one core, and more of more clients, so the rates of an
indicator are kept in the cache, under a hash of the indicator, the truth and the kind of mixture.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import sklearn

from fnll.harness.integrity import DIAGNOSTICS
from fnll.report.fednoro_table3 import SEEDS, Rates, repeat_detection
from fnll.report.folders import read_lines, read_run
from fnll.system.cache import cached
from fnll.system.files import read_json, write_json

FILE = "rates.json"


class Indicator(NamedTuple):
    """What one detection was made from."""

    t: int  # T₁, rounds of warm-up: a fact counts the round of the detection too, which is the first after it
    table: list[Any]  # a row per client; None: no data
    noisy: frozenset[int]
    covariance: str


def indicators(run: Path) -> list[Indicator]:
    """Every indicator that a run recorded; none where nobody knows the true labels."""
    facts = [fact for fact in read_lines(run, DIAGNOSTICS) if fact["name"] == "indicator"]
    realised = read_json(run / "manifest.json").get("realised") or [None]
    if not facts or None in realised:
        return []
    noisy = frozenset(k for k, level in enumerate(realised) if level > 0)
    covariance = str(read_run(run).config.get("method.covariance", "full"))
    return [Indicator(int(fact["t"]) - 1, fact["value"], noisy, covariance) for fact in facts]


def mixture_rates(run: Path, seeds: range = SEEDS) -> Rates | None:
    """The rates of a run's last indicator; None if it recorded none."""
    known = indicators(run)
    return rates_of(known[-1], seeds) if known else None


def rates_of(indicator: Indicator, seeds: range = SEEDS) -> Rates:
    """Re, Pr and MR of one mixture per seed, from the cache if they were computed before."""
    key = [indicator.table, sorted(indicator.noisy), indicator.covariance, len(seeds), seeds[0], sklearn.__version__]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        found = repeat_detection(indicator.table, indicator.noisy, seeds, indicator.covariance)  # type: ignore[arg-type]
        write_json(folder / FILE, found._asdict())

    return cached(f"mixtures/{name}", build, lambda folder: Rates(**read_json(folder / FILE)))
