"""How good review lists are: confident learning and every method as detectors, on digits with known wrong labels.

    python experiments/audit_digits/run.py --store runs/audit_digits            everything (hours)
    python experiments/audit_digits/run.py --store ... --seeds 1 --sites 10     a part; finished runs are read
    python experiments/audit_digits/run.py --store ... --table                  results.csv as the table of README.md
    python experiments/audit_digits/run.py --store ... --cifar10n DIR           a few methods on CIFAR-10N

Digits are dealt to sites and get wrong labels (symmetric, pair-flip, H-IDN); the result is written as a table with
columns x, label, client and clean_label, and read as anybody's own data are: dataset=table partition=given
noise=native. Scores are those of docs/metrics.md, of the final review list.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Hashable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from fnll.audit.panel import Member, confident_member, member, outcome_of
from fnll.audit.plan import CONFIDENT, Plan, data_words, request
from fnll.errors import UserError
from fnll.harness.choices import options
from fnll.harness.config import compose
from fnll.harness.detectors import client_scores, correction_scores, sample_scores
from fnll.harness.prepare import Run, made, prepare, scenario_of

HERE = Path(__file__).parent
NOISE = {
    "symmetric": ("noise=rho_tau", "noise.rho=0.5", "noise.tau=0.3"),
    "pair-flip": ("noise=ramp", "noise.kind=asymmetric", "noise.low=0.0", "noise.high=0.4"),
    "h-idn": ("noise=h_idn", "noise.rho=0.5", "noise.eta_low=0.3", "noise.eta_high=0.5"),
}
FEW = ("fedrn", "selfie", "coteaching", "fedcorr", "jointopt")  # with 4 and 20 sites
FOLDS, ROUNDS = 2, 20
SHARED = ("eval_every=1000", "diagnostics_every=0", "checkpoint_seconds=600", "model=mlp",
          "local.batch_size=32", "local.lr=0.1", "executor=vectorised")  # fmt: skip
KEYS = ("find/auc", "find/precision_1", "find/precision_5", "find/precision_10", "levels/error", "levels/rank",
        "find/accused", "fixed", "broken")  # fmt: skip


def methods() -> list[str]:
    """Every method that could run on unknown truth; the released codes' variants judge alike."""
    return [name for name in options("method") if not name.startswith("oracle") and not name.endswith("_official")]


def table(store: Path, noise: str, sites: int, seed: int) -> Path:
    """Digits with wrong labels as a table of somebody's own."""
    path = store / "tables" / f"{noise}-{sites}-{seed}.csv"
    if not path.exists():
        cfg = compose([*NOISE[noise], f"num_clients={sites}", f"seed={seed}"]).cfg
        dataset = made(cfg.dataset, "dataset")
        scenario, truth = scenario_of(cfg, dataset)
        assert truth.labels is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["x", "label", "client", "clean_label"])
            for k, shard in enumerate(scenario.shards):
                for i, pixels in zip(shard.tolist(), scenario.images.take(shard).flatten(1).tolist(), strict=True):
                    labels = (int(scenario.labels[i]), int(truth.labels[i]))
                    writer.writerow([" ".join(map(str, pixels)), labels[0], f"site {k:02}", labels[1]])
    return path


def plan_for(run_sites: int, seed: int) -> Plan:
    """Two folds, each with a seed of its own."""
    fraction = min(1.0, 10 / run_sites)
    return Plan((), {}, FOLDS, ROUNDS, 10 * seed, (*SHARED, f"fraction={fraction}"), 0.0)


def heard(store: Path, file: Path, method: str, sites: int, seed: int) -> Iterator[tuple[Run, Member]]:
    """What a method says after running on every fold; FedAvg's runs also give confident learning."""
    data, plan = data_words(file, None, (), None), plan_for(sites, seed)
    outcomes = [outcome_of(prepare(request(data, plan, method, k, store / "runs"))) for k in range(1, FOLDS + 1)]
    if method == "fedavg":
        yield outcomes[0].run, confident_member(outcomes)
    yield outcomes[0].run, member(method, outcomes)


def scores(run: Run, one: Member) -> dict[str, float]:
    """The detector's scores: of its list, of its levels, of its corrections."""
    assert run.dataset.reviewed is not None
    assert run.dataset.owners is not None
    observed, clean = run.scenario.labels.numpy(), run.dataset.reviewed.numpy()
    owners = run.dataset.owners.numpy()
    true = [float((observed != clean)[owners == k].mean()) for k in range(len(run.scenario.shards))]
    found = sample_scores(one.p_wrong, observed != clean)
    found |= client_scores(np.nanmean(one.levels, axis=0), one.noisy > 0.5, true)
    changed = correction_scores(observed, one.suggested, clean)
    return {**found, **{key: changed[key] / len(observed) for key in ("fixed", "broken")}}


def measure(store: Path, seeds: int, sites: list[int], wanted: list[str], noises: list[str]) -> None:
    """Run what is missing and write results.csv."""
    path = HERE / "results.csv"
    done = pd.read_csv(path).to_dict("records") if path.exists() else []
    known = {(row["noise"], row["sites"], row["seed"], row["method"]) for row in done}
    for seed in range(seeds):
        for noise in noises:
            for count in sites:
                for method in wanted or (methods() if count == 10 else ["fedavg", *FEW]):
                    if (noise, count, seed, method) in known:
                        continue
                    try:
                        for run, one in heard(store, table(store, noise, count, seed), method, count, seed):
                            judge = one.judges_samples
                            row: dict[Hashable, object] = {
                                "noise": noise,
                                "sites": count,
                                "seed": seed,
                                "method": one.name,
                                "judges": judge,
                            }
                            done.append({**row, **{key: scores(run, one).get(key) for key in KEYS}})
                    except UserError as error:
                        print(f"{method} takes no part: {error}", flush=True)
                    pd.DataFrame(done).round(4).to_csv(path, index=False)
                    print(noise, count, seed, method, flush=True)


def summarise() -> None:
    """The table of the README, and the evidence that an audit's page quotes.

    Of every method that judges samples, with 10 sites: its mean area under the curve, that of confident learning on the
    same tables, and their number.
    """
    rows = pd.read_csv(HERE / "results.csv")
    shown = rows.groupby(["sites", "noise", "method"])[list(KEYS)].mean().round(3).reset_index()
    print("| " + " | ".join(map(str, shown)) + " |\n|" + "---|" * len(shown.columns))
    for row in shown.itertuples(index=False):
        print("| " + " | ".join("–" if value != value else str(value) for value in row) + " |")
    judges = rows[(rows["sites"] == 10) & rows["judges"]]
    wide = judges.pivot_table("find/auc", ["noise", "seed"], "method")
    area = {}
    for name in wide:
        both = wide[[name, CONFIDENT]].dropna() if name != CONFIDENT else wide[[name, name]].dropna()
        area[name] = [round(float(both.iloc[:, 0].mean()), 3), round(float(both.iloc[:, 1].mean()), 3), len(both)]
    packaged = HERE.parents[1] / "src" / "fnll" / "audit" / "evidence.json"
    packaged.write_text(json.dumps({"source": "experiments/audit_digits", "area": area}, indent=2) + "\n")


def human(store: Path, folder: str, subset: int = 5000) -> None:
    """Confident learning and a few methods on CIFAR-10N: aggregate and worst (not run yet)."""
    for labels in ("aggre", "worse"):
        words = ["dataset=cifar10n", f"dataset.root={folder}", "dataset.images=folder", "noise=human"]
        cfg = compose([*words, f"noise.labels={labels}", f"dataset.subset={subset}", "num_clients=10"]).cfg
        dataset = made(cfg.dataset, "dataset")
        scenario, truth = scenario_of(cfg, dataset)
        assert truth.labels is not None
        path = store / "tables" / f"cifar10n-{labels}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        images = store / "tables" / f"cifar10n-{labels}"
        images.mkdir(exist_ok=True)
        from PIL import Image

        rows = []
        for k, shard in enumerate(scenario.shards):
            for i, pixels in zip(shard.tolist(), scenario.images.take(shard).numpy(), strict=True):
                Image.fromarray(pixels.transpose(1, 2, 0)).save(images / f"{i}.png")
                given, clean = (dataset.class_names[int(source[i])] for source in (scenario.labels, truth.labels))
                rows.append((f"{images.name}/{i}.png", given, f"site {k:02}", clean))
        pd.DataFrame(rows, columns=["file", "label", "client", "clean_label"]).to_parquet(path)
        for method in ("fedavg", *FEW):
            for run, one in heard(store, path, method, 10, 0):
                print(labels, one.name, json.dumps(scores(run, one)), flush=True)


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 4, 20])
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--noise", nargs="+", default=list(NOISE))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--cifar10n")
    args = parser.parse_args()
    if args.cifar10n:
        human(args.store, args.cifar10n)
    elif args.table:
        summarise()
    else:
        measure(args.store, args.seeds, args.sites, args.methods, args.noise)


if __name__ == "__main__":
    main()
