"""Whether two versions of fnll compute the same: every method on digits, under `serial` and `pool`, bit for bit.

    python experiments/same_numbers.py --old "PYTHON"        # the interpreter of an environment with the older version
    python experiments/same_numbers.py --old "env PYTHONPATH=OLD/src python"

Both versions run the same words; recorded metrics and diagnostics (times apart) and the final weights must be equal.
Prints one line per case and exits with 1 if any differs.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

WORLD = (
    "dataset.subset=360", "num_clients=6", "fraction=0.5", "rounds=9", "local.epochs=2", "noise.rho=0.6",
    "noise.tau=0.5", "diagnostics_every=3", "checkpoint_seconds=0",
)  # fmt: skip
FEDCORR = ("method.passes=2", "method.finetune=2")
FEDRN = ("method.warmup=3",)
FEDNORO = ("method.warmup=3", "method.ramp_rounds=3")
CASES: dict[str, Sequence[str]] = {
    "fedavg": (),
    "fedavg, Adam, decay, clipping": ("local=adam", "local.lr=0.001", "local.lr_decay=0.9", "local.clip_norm=1.0"),
    "fedavg, kept optimiser": ("local.keep_optimizer=true",),
    "fedprox": ("method.mu=0.1",),
    "fedprox, norm": ("method.mu=0.1", "method.form=norm"),
    "fedla": ("partition=dirichlet", "partition.beta=1"),
    "fedcorr": FEDCORR,
    "fedcorr, cohorts, mixup in all stages": (*FEDCORR, "method.stage1_cohort=3", "method.mixup_stages=[1,2,3]"),
    "fedcorr, kept optimiser": (*FEDCORR, "local.keep_optimizer=true"),
    "fedcorr with fedprox": (*FEDCORR, "method@method.usual=fedprox"),
    "fedcorr_official": (*FEDCORR,),
    "fedrn": FEDRN,
    "fedrn, random neighbours, mlp": (*FEDRN, "method.neighbours=random", "model=mlp"),
    "fedrn_official": FEDRN,
    "fednoro": FEDNORO,
    "fednoro_official": (*FEDNORO, "method.ramp_begin=4"),
    "oracle": (),
}
EXECUTORS: dict[str, Sequence[str]] = {"serial": (), "pool": ("executor=pool", "executor.workers=2")}


def place_of(root: Path, executor: str, case: str) -> Path:
    """Where a case's run lies; no comma, which Hydra would take for a sweep."""
    return root / executor / re.sub(r"\W+", "_", case)


def run_all(out: Path) -> None:
    """Compute every case with the fnll of this interpreter; one folder each."""
    from fnll.cli import main

    for case, words in CASES.items():
        method = case.split(",")[0].split(" ")[0]
        for executor, own in EXECUTORS.items():
            folder = place_of(out, executor, case)
            if main(["run", f"method={method}", *WORLD, *words, *own, f"runs_dir={folder}"]):
                raise SystemExit(f"{case} failed under {executor}")


def outcome(folder: Path) -> tuple[list[dict[str, object]], bytes]:
    """Everything a run computed, without times."""
    (run,) = (path for path in folder.iterdir() if not path.name.startswith("."))
    rows = [json.loads(line) for name in ("metrics", "diagnostics") for line in (run / f"{name}.jsonl").open()]
    # `step` was called `round` before 0.2
    timeless = [
        {"step" if key == "round" else key: value for key, value in row.items() if not key.startswith("time/")}
        for row in rows
    ]
    return timeless, (run / "weights.safetensors").read_bytes()


def agree(old: list[dict[str, object]], new: list[dict[str, object]]) -> bool:
    """Whether the newer version recorded all that the older one did, with the same values; it may record more."""
    names = {row.get("name") for row in old}
    known = [row for row in new if row.get("name") in names]
    return len(old) == len(known) and all(
        row == {k: now.get(k) for k in row} for row, now in zip(old, known, strict=True)
    )


def compare(old: Path, new: Path) -> bool:
    """Print a line for every case; whether all are equal."""
    equal = True
    for executor in EXECUTORS:
        for case in CASES:
            (rows, weights), (now_rows, now_weights) = (outcome(place_of(root, executor, case)) for root in (old, new))
            found = {"records": agree(rows, now_rows), "weights": weights == now_weights}
            differing = [name for name, same in found.items() if not same]
            equal = equal and not differing
            print(f"{executor:<7} {case:<40} {'DIFFERENT ' + ' and '.join(differing) if differing else 'equal'}")
    return equal


def main() -> int:
    """Run both versions and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", help="the command that starts Python with the older version")
    parser.add_argument("--run", type=Path, help="only compute with this interpreter, into this folder")
    parser.add_argument("--kept", type=Path, help="where an earlier --run of the older version lies")
    args = parser.parse_args()
    if args.run:
        run_all(args.run)
        return 0
    with TemporaryDirectory() as place:
        old = args.kept or Path(place) / "old"
        if args.kept is None:
            subprocess.run([*shlex.split(args.old), __file__, "--run", str(old)], check=True, stdout=subprocess.DEVNULL)
        new = Path(place) / "new"
        subprocess.run([sys.executable, __file__, "--run", str(new)], check=True, stdout=subprocess.DEVNULL)
        return 0 if compare(old, new) else 1


if __name__ == "__main__":
    sys.exit(main())
