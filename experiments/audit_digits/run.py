"""How good review lists are: confident learning and every method as detectors, where the wrong labels are known.

    python experiments/audit_digits/run.py --store runs/audit_digits --jobs 2         digits: everything (hours)
    python experiments/audit_digits/run.py --store ... --seeds 1 --sites 10           a part of it
    python experiments/audit_digits/run.py --store ... --cifar10n DIR --seeds 3       a few methods on CIFAR-10N
    python experiments/audit_digits/run.py --table                                    results.csv as README's table

Digits are dealt to sites and get wrong labels (symmetric, pair-flip, H-IDN); the result is written as a table with
columns x, label, client and clean_label, and read as anybody's own data are: dataset=table partition=given
noise=native. CIFAR-10N's images have the labels that people gave; DIR holds them as docs/data.md says, as published or
as a folder of images. Scores are those of docs/metrics.md, of the final review list.

What is finished is skipped, row by row in results.csv and run by run in the store, so a script that was stopped goes on
when it is called again. Work goes seed by seed: an unfinished results.csv has whole tables of fewer seeds.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from fnll.audit.panel import Member, PanelRun, confident_member, member, outcome_of
from fnll.audit.plan import CONFIDENT, REFERENCE, Plan, data_words, quoted, request
from fnll.errors import UserError
from fnll.executors.numerics import limit_threads
from fnll.harness.choices import options
from fnll.harness.config import Request, compose
from fnll.harness.detectors import client_scores, correction_scores, sample_scores
from fnll.harness.execute import told
from fnll.harness.prepare import Run, made, prepare, scenario_of
from fnll.harness.warned import listening
from fnll.scenario.scenario import Scenario
from fnll.system.files import locked, make_folder, write_atomic
from fnll.system.workers import begin

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
EVIDENCE = HERE.parents[1] / "src" / "fnll" / "audit" / "evidence.json"
NOISE = {
    "symmetric": ("noise=rho_tau", "noise.rho=0.5", "noise.tau=0.3"),
    "pair-flip": ("noise=ramp", "noise.kind=asymmetric", "noise.low=0.0", "noise.high=0.4"),
    "h-idn": ("noise=h_idn", "noise.rho=0.5", "noise.eta_low=0.3", "noise.eta_high=0.5"),
}
HUMAN = {"human aggregate": "aggre", "human worst": "worse"}  # CIFAR-10N's own names of the label sets
PICTURES = 5000  # of CIFAR-10N's 50,000, others with every seed
FEW = ("fedrn", "selfie", "coteaching", "fedcorr", "jointopt")  # with 4 and 20 sites, and on CIFAR-10N
FOLDS, ROUNDS = 2, 20
SHARED = ("eval_every=1000", "diagnostics_every=0", "checkpoint_seconds=600", "local.batch_size=32",
          "executor=vectorised")  # fmt: skip
DIGITS = ("model=mlp", "local.lr=0.1")
PHOTOS = ("model=lenet5", "local.lr=0.05", "dataset.padding=4", "dataset.flip=true")
PLACE = ["noise", "sites", "seed", "method"]
KEYS = ["wrong", "find/auc", "find/precision_1", "find/precision_5", "find/precision_10", "levels/error",
        "levels/rank", "find/accused", "fixed", "broken"]  # fmt: skip

Row = dict[str, object]


@dataclass(frozen=True)
class Case:
    """One method on one table: a line of results.csv, and two of FedAvg."""

    noise: str
    sites: int
    seed: int
    method: str

    @property
    def table(self) -> str:
        """What its table is called."""
        return f"{self.noise}-{self.sites}-{self.seed}".replace(" ", "-")


@dataclass(frozen=True)
class Place:
    """Where things lie."""

    store: Path
    cifar10n: str | None = None


def methods() -> list[str]:
    """Every method that could run on unknown truth; the released codes' variants judge alike."""
    return [name for name in options("method") if not name.startswith("oracle") and not name.endswith("_official")]


def cases(seeds: int, noises: Iterable[str], sites: Iterable[int], wanted: Iterable[str]) -> list[Case]:
    """All that is asked for, seed by seed. Unless `wanted` names methods, digits of 10 sites meet them all."""
    few, chosen = [REFERENCE, *FEW], list(wanted)
    return [
        Case(noise, count, seed, method)
        for seed in range(seeds)
        for noise in noises
        for count in sites
        for method in chosen or (methods() if noise in NOISE and count == 10 else few)
    ]


def table(case: Case, place: Place) -> Path:
    """A data set with wrong labels as a table of somebody's own; made once, whoever asks first."""
    path = make_folder(place.store / "tables") / f"{case.table}.csv"
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            cfg = compose([*scene(case, place), f"num_clients={case.sites}", f"seed={case.seed}"]).cfg
            dataset = made(cfg.dataset, "dataset")
            scenario, truth = scenario_of(cfg, dataset)
            assert truth.labels is not None
            order = [(k, i) for k, shard in enumerate(scenario.shards) for i in shard.tolist()]
            column, samples = described(scenario, [i for _, i in order], path.with_suffix(""), case)
            names = dataset.class_names or tuple(map(str, range(scenario.num_classes)))
            rows = {
                column: samples,
                "label": [names[scenario.labels[i]] for _, i in order],
                "client": [f"site {k:02}" for k, _ in order],
                "clean_label": [names[truth.labels[i]] for _, i in order],
            }
            write_atomic(path, pd.DataFrame(rows).to_csv(index=False))
    return path


def scene(case: Case, place: Place) -> list[str]:
    """The settings of the scenario that becomes a table."""
    if case.noise in NOISE:
        return list(NOISE[case.noise])
    if place.cifar10n is None:
        raise UserError(f"{case.noise} needs --cifar10n DIR")
    form = "folder" if (Path(place.cifar10n).expanduser() / "train").is_dir() else "batches"
    data = ["dataset=cifar10n", f"dataset.root={quoted(place.cifar10n)}", f"dataset.images={form}"]
    return [*data, f"dataset.subset={PICTURES}", f"dataset.seed={case.seed}", "noise=human",
            f"noise.labels={HUMAN[case.noise]}"]  # fmt: skip


def described(scenario: Scenario, index: list[int], folder: Path, case: Case) -> tuple[str, list[str]]:
    """The column that holds the samples, and what it says: pixel values of digits, names of files with colours."""
    pixels = scenario.images.take(scenario.labels.new_tensor(index)).numpy()
    if case.noise in NOISE:
        return "x", [" ".join(map(str, values)) for values in pixels.reshape(len(pixels), -1).tolist()]
    make_folder(folder)
    for i, values in zip(index, pixels, strict=True):
        Image.fromarray(values.transpose(1, 2, 0)).save(folder / f"{i}.png")
    return "file", [f"{folder.name}/{i}.png" for i in index]


def plan_for(case: Case) -> Plan:
    """Two folds, each with a seed of its own."""
    own = DIGITS if case.noise in NOISE else PHOTOS
    fraction = min(1.0, 10 / case.sites)
    return Plan((), {}, FOLDS, ROUNDS, 10 * case.seed, (*SHARED, *own, f"fraction={fraction}"), 0.0)


def rows_of(case: Case, place: Place) -> list[Row] | str:
    """What a method scores after running on every fold, or why it scores nothing; others are waiting."""
    limit_threads(1)  # the order of sums must not depend on the number of jobs
    try:
        data, plan = data_words(table(case, place), None, (), None), plan_for(case)
        runs = place.store / "runs"
        outcomes = [outcome(request(data, plan, case.method, k, runs)) for k in range(1, FOLDS + 1)]
        heard = [confident_member(outcomes)] if case.method == REFERENCE else []  # it judges by FedAvg's models
        return [row(case, outcomes, one) for one in (*heard, member(case.method, outcomes))]
    except Exception as error:
        return told(error)


def outcome(asked: Request) -> PanelRun:
    """One run. What it warns of is in its folder and not said: there are a thousand of them."""
    with listening(lambda text, about: None) as warned:
        return outcome_of(prepare(asked), warned)


def row(case: Case, outcomes: list[PanelRun], one: Member) -> Row:
    """A line of results.csv."""
    found = scores(outcomes[0].run, one)
    facts: Row = {"noise": case.noise, "sites": case.sites, "seed": case.seed, "method": one.name}
    runs = " ".join(outcome.run.run_id for outcome in outcomes)
    return {**facts, "judges": one.judges_samples, **{key: found.get(key) for key in KEYS}, "runs": runs}


def scores(run: Run, one: Member) -> dict[str, float]:
    """The share of wrong labels, and the detector's scores: of its list, of its levels, of its corrections."""
    assert run.dataset.reviewed is not None
    assert run.dataset.owners is not None
    observed, clean = run.scenario.labels.numpy(), run.dataset.reviewed.numpy()
    owners = run.dataset.owners.numpy()
    true = [float((observed != clean)[owners == k].mean()) for k in range(len(run.scenario.shards))]
    found = {"wrong": float((observed != clean).mean()), **sample_scores(one.p_wrong, observed != clean)}
    found |= client_scores(np.nanmean(one.levels, axis=0), one.noisy > 0.5, true)
    changed = correction_scores(observed, one.suggested, clean)
    return {**found, **{key: changed[key] / len(observed) for key in ("fixed", "broken")}}


def measure(wanted: Iterable[Case], place: Place, jobs: int) -> None:
    """Do what is missing and add it to results.csv; say in the end who scored nothing, and why."""
    known = {tuple(line[key] for key in PLACE) for line in results()}
    missing = [case for case in wanted if astuple(case) not in known]
    silent: dict[Case, str] = {}
    for number, (case, found) in enumerate(each(partial(rows_of, place=place), missing, jobs), 1):
        if isinstance(found, str):
            silent[case] = found
        else:
            keep(found, place)
        print(f"{number} of {len(missing)}: {case.method}, {case.table}", flush=True)
    for case, why in silent.items():
        print(f"no scores of {case.method}, {case.table}: {why}")


def results() -> list[dict[Any, Any]]:
    """The rows of results.csv."""
    return pd.read_csv(RESULTS).to_dict("records") if RESULTS.exists() else []


def keep(found: list[Row], place: Place) -> None:
    """Add rows to results.csv, in order; it is read again, since a second script may have written to it."""
    with locked(place.store / "results.lock"):
        rows = pd.DataFrame([*results(), *found]).sort_values(PLACE)
        write_atomic(RESULTS, rows.round(4).to_csv(index=False))


def each(
    work: Callable[[Case], list[Row] | str], todo: list[Case], jobs: int
) -> Iterator[tuple[Case, list[Row] | str]]:
    """Every case with what `work` makes of it, as soon as it is there; in `jobs` processes."""
    if jobs == 1:
        yield from ((case, work(case)) for case in todo)
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=begin, initargs=(os.getcwd(),))
    try:
        futures = {pool.submit(work, case): case for case in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits for the cases under way, not for all of them


def summarise() -> None:
    """The table of the README, and the evidence that an audit's page quotes."""
    rows = pd.read_csv(RESULTS)
    if rows.empty:
        raise SystemExit(f"{RESULTS} has no rows yet")
    rows["method"] += np.where(rows["judges"], "", " *")
    grouped = rows.groupby(["sites", "noise", "method"])
    shown = grouped[KEYS].mean().round(3).astype(object)
    spread = grouped["find/auc"].std().round(3)
    shown["find/auc"] = [
        f"{mean} ± {sd}" if sd == sd else mean for mean, sd in zip(shown["find/auc"], spread, strict=True)
    ]
    shown.insert(0, "seeds", grouped.size())
    lines = shown.reset_index()
    print("| " + " | ".join(map(str, lines)) + " |\n|" + "---|" * len(lines.columns))
    for line in lines.itertuples(index=False):
        print("| " + " | ".join("–" if value != value else str(value) for value in line) + " |")
    EVIDENCE.write_text(json.dumps({"source": "experiments/audit_digits", "area": areas(rows)}, indent=2) + "\n")


def areas(rows: pd.DataFrame) -> dict[str, list[float]]:
    """Of every method that judges samples, on digits of 10 sites: its mean area under the curve, that of confident
    learning on the same tables, and their number."""
    judges = rows[(rows["sites"] == 10) & rows["judges"] & rows["noise"].isin(list(NOISE))]
    wide = judges.pivot_table("find/auc", ["noise", "seed"], "method")
    found = {}
    for name in map(str, wide):
        both = wide[[name]].assign(reference=wide[CONFIDENT]).dropna()
        found[name] = [round(float(both[name].mean()), 3), round(float(both["reference"].mean()), 3), len(both)]
    return found


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("runs/audit_digits"))
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sites", type=int, nargs="+", help="of digits (default: 10 4 20); CIFAR-10N has 10")
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--noise", nargs="+", choices=[*NOISE, *HUMAN])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--cifar10n", metavar="DIR")
    args = parser.parse_args()
    if args.table:
        return summarise()
    noises, sites = (HUMAN, [10]) if args.cifar10n else (NOISE, [10, 4, 20])
    wanted = cases(args.seeds, args.noise or noises, args.sites or sites, args.methods)
    measure(wanted, Place(args.store, args.cifar10n), args.jobs)


if __name__ == "__main__":
    main()
