"""Keep what a grid showed: its report's tables, its curves, and one line per run, without the runs themselves.

    python experiments/freeze.py RUNS experiments/NAME
    python experiments/freeze.py RUNS experiments/NAME --published fedrn_table5 fedrn_table8 --mixtures 10000
    python experiments/freeze.py RUNS experiments/NAME --reference-curves FILE.csv.gz

writes `results.jsonl` (each run's summary with its cell, commit and command), `report.md`, `curves.png`, and from the
lines alone `table.md` (mean and spread of every row and column) and `ranks.png` (critical differences). Lines of an
earlier `results.jsonl` whose runs RUNS does not hold are kept, so that a grid may be run in parts, also on different
machines; report and curves are of RUNS only. Other people's numbers beside ours go to
`beside.md`, and their figures to files of their own. The verdict, in `README.md`, is for people to write.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from fnll.errors import UserError
from fnll.harness.catalogue import described
from fnll.harness.status import Status
from fnll.report import analyse, load, write
from fnll.report.analysis import Analysis
from fnll.report.beside import Others, others
from fnll.report.cells import Cell
from fnll.report.figures.comparison import critical_difference
from fnll.report.render import to_markdown
from fnll.report.store import Store

Line = dict[str, Any]


def results(store: Store, runs: Path) -> list[Line]:
    """What identifies each finished run, and its summary."""
    lines = []
    for run in store.runs[store.runs["status"] == Status.FINISHED].itertuples():
        summary = json.loads((runs / str(run.run_id) / "summary.json").read_text())
        command = re.sub(r" (runs_dir|dataset\.root)=\S+", "", str(run.command))  # wherever things lay
        row = {} if run.method == summary["method"] else {"row": run.method, "name": store.name(str(run.method))}
        lines.append({"cell": run.cell, "commit": run.commit, "command": command, **row, **summary})
    return lines


def joined(new: Sequence[Line], path: Path) -> list[Line]:
    """The new lines, and those of `path` about other runs, in order."""
    old = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    places = {(line["method"], line["command"]) for line in new}
    kept = [line for line in old if (line["method"], line["command"]) not in places]
    return sorted([*new, *kept], key=lambda line: (line["method"], line["cell"], line["seed"]))


def thawed(lines: Sequence[Line], metric: str) -> Store:
    """The lines as a store with one column for each regime and seed, which are what ranks are averaged over."""
    labels = [f"{line['cell']} · seed {line['seed']}" for line in lines]
    runs = pd.DataFrame(
        {
            "run_id": [line["run_id"] for line in lines],
            "method": [_row(line) for line in lines],
            "kind": ["oracle" if line["method"].startswith("oracle") else "method" for line in lines],
            "cell": labels,
            "origin": [line["origin"] for line in lines],
            "seed": [line["seed"] for line in lines],
            "status": [Status.DIVERGED if line["diverged"] else Status.FINISHED for line in lines],
            "reason": "",
            "digest": [line["checksum"] for line in lines],
            "rounds": 1,
        }
    )
    metrics = runs[["run_id", "method", "cell", "seed", "kind", "status"]].assign(step=1, stage="")
    metrics[metric] = [line[metric]["last10"] for line in lines]
    cells = tuple(Cell(label, "", "", label, "") for label in dict.fromkeys(labels))
    names = {_row(line): _name(line) for line in lines}
    return Store(Path("results.jsonl"), runs, metrics, cells, names=names)


def table(lines: Sequence[Line], metric: str) -> str:
    """Mean ± standard deviation over seeds in percent, of the last ten evaluations, for every row and column."""
    frame = pd.DataFrame(
        [{"row": _name(line), "cell": line["cell"], "value": 100 * line[metric]["last10"]} for line in lines]
    )
    shown = frame.groupby(["row", "cell"])["value"].agg(["mean", "std", "count"])
    columns = list(dict.fromkeys(frame["cell"]))
    rows = [f"| | {' | '.join(columns)} |", f"|{'---|' * (len(columns) + 1)}"]
    for row in dict.fromkeys(frame["row"]):
        words = [_value(shown.loc[(row, cell)]) if (row, cell) in shown.index else "–" for cell in columns]
        rows.append(f"| {row} | {' | '.join(words)} |")
    return "\n".join(rows) + "\n"


def _row(line: Line) -> str:
    """The row that a run is in: its method, with settings where these make rows of it."""
    return str(line.get("row", line["method"]))


def _name(line: Line) -> str:
    return str(line.get("name") or described(line["method"]).name)


def _value(one: pd.Series) -> str:
    return f"{one['mean']:.2f} ± {one['std']:.2f} ({int(one['count'])})"


def draw_ranks(analysis: Analysis, path: Path) -> None:
    """Average ranks over regimes and seeds; nothing if there are too few of them."""
    try:
        figure = critical_difference(analysis)
    except UserError as error:
        print(f"no {path.name}: {error}")
        return
    seeds = analysis.store.runs["seed"].nunique()
    figure.axes[0].set_title(
        f"Average rank over {len(analysis.store.cells) // seeds} regimes × {seeds} seeds (1 is best)", pad=18
    )
    figure.savefig(path, dpi=150)


def keep_beside(asked: Sequence[Others], names: Sequence[str], out: Path) -> None:
    """Other people's numbers: the tables in one file, each figure in one of its own."""
    tables = [to_markdown(table) for one in asked for table in one.tables]
    if tables:
        (out / "beside.md").write_text("\n".join(tables))
    for one, name in zip(asked, names, strict=True):
        for plate in one.plates():
            plate.figure.savefig(out / f"{name or plate.name}.png", dpi=110)


def main() -> None:
    """Read the runs, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--metric", default="test/accuracy")
    parser.add_argument("--published", nargs="+", default=[], metavar="TABLE", help="as `fnll report --published`")
    parser.add_argument("--reference-curves", type=Path, metavar="FILE", help="as `fnll report --reference-curves`")
    parser.add_argument("--mixtures", type=int, default=0, metavar="N", help="as `fnll report --mixtures`")
    args = parser.parse_args()
    store = load(args.runs)
    args.out.mkdir(parents=True, exist_ok=True)
    lines = joined(results(store, args.runs), args.out / "results.jsonl")
    written = [json.dumps(line, ensure_ascii=False, sort_keys=True) for line in lines]
    (args.out / "results.jsonl").write_text("\n".join(written) + "\n")
    (args.out / "table.md").write_text(table(lines, args.metric))
    draw_ranks(analyse(thawed(lines, args.metric), args.metric), args.out / "ranks.png")
    further = args.reference_curves is not None or args.mixtures
    asked = [others(store, name, None) for name in args.published]
    asked += [others(store, None, args.reference_curves, args.mixtures)] if further else []
    keep_beside(asked, [*args.published, *([""] if further else [])], args.out)
    with TemporaryDirectory() as place:
        write(analyse(store, args.metric), Path(place), targets=(), with_figures=True)
        shutil.copy(Path(place) / "report.md", args.out / "report.md")
        shutil.copy(Path(place) / "figures" / "curves_step.png", args.out / "curves.png")


if __name__ == "__main__":
    main()
