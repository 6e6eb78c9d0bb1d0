"""Keep what a grid showed: its report's tables, its curves, and one line per run, without the runs themselves.

    python experiments/freeze.py RUNS experiments/NAME

writes `results.jsonl` (each run's summary with its cell, commit and command), `report.md` and `curves.png`. The
verdict, in `README.md`, is for people to write.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from fnll.harness.status import Status
from fnll.report import analyse, load, write
from fnll.report.store import Store


def results(store: Store, runs: Path) -> list[dict[str, object]]:
    """What identifies each finished run, and its summary."""
    lines = []
    for run in store.runs[store.runs["status"] == Status.FINISHED].sort_values(["method", "cell", "seed"]).itertuples():
        summary = json.loads((runs / str(run.run_id) / "summary.json").read_text())
        command = re.sub(r" (runs_dir|dataset\.root)=\S+", "", str(run.command))  # wherever things lay
        lines.append({"cell": run.cell, "commit": run.commit, "command": command, **summary})
    return lines


def main() -> None:
    """Read the runs, write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--metric", default="test/accuracy")
    args = parser.parse_args()
    store = load(args.runs)
    args.out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(line, ensure_ascii=False, sort_keys=True) for line in results(store, args.runs)]
    (args.out / "results.jsonl").write_text("\n".join(lines) + "\n")
    with TemporaryDirectory() as place:
        write(analyse(store, args.metric), Path(place), targets=(), with_figures=True)
        shutil.copy(Path(place) / "report.md", args.out / "report.md")
        shutil.copy(Path(place) / "figures" / "curves_step.png", args.out / "curves.png")


if __name__ == "__main__":
    main()
