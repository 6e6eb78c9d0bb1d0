"""The papers' tables at `size=mini` beside the printed numbers.

    python experiments/papers_mini/tables.py RUNS fednoro_table4 ...

prints them, with how many pairs of rows ours orders as printed, and adds the runs to `results.jsonl` (see freeze.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from types import ModuleType

from fnll.report import load
from fnll.report.published import Comparison, comparisons
from fnll.report.published_tables import ordered

HERE = Path(__file__).parent


def freeze() -> ModuleType:
    """The script beside this folder."""
    spec = importlib.util.spec_from_file_location("freeze", HERE.parent / "freeze.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(found: Comparison) -> str:
    """One table as Markdown: ours over seeds, and the printed number in brackets."""
    rows: dict[str, dict[str, str]] = {}
    for cell in found.cells:
        record = cell.record
        column = (
            record.column if found.printed.records[0].select == record.select else f"{record.column}, {record.select}"
        )
        ours = (
            f"{cell.mean:.2f} ± {cell.std:.2f}"
            if len(cell.values) > 1 and not record.mean_of_row
            else f"{cell.mean:.2f}"
        )
        printed = "–" if record.value is None else f"{record.value:.2f}"
        rows.setdefault(record.row, {})[column] = f"{ours} ({printed})"
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    seeds = sorted({len(cell.values) for cell in found.cells if not cell.record.mean_of_row})
    lines = [
        f"**{found.printed.name}** ({found.printed.title}); ours over {' or '.join(map(str, seeds))} seeds (printed)",
        "",
        f"| | {' | '.join(columns)} |",
        f"|---{'|---' * len(columns)}|",
        *(f"| {row} | {' | '.join(cells.get(column, '') for column in columns)} |" for row, cells in rows.items()),
    ]
    alike, pairs = ordered(found)
    return "\n".join([*lines, "", f"Of {pairs} pairs of rows in one column, ours orders {alike} as printed.", ""])


def main() -> None:
    """Print the tables and keep the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("tables", nargs="+")
    args = parser.parse_args()
    store, kept = load(args.runs), HERE / "results.jsonl"
    for name in args.tables:
        (found,) = comparisons(store, name)
        print(shown(found))
    script = freeze()
    lines = script.joined(script.results(store, args.runs), kept)
    kept.write_text("".join(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n" for line in lines))


if __name__ == "__main__":
    main()
