"""`fnll labels`: what a finished run says about clients and samples, and the labels it would give them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DESCRIPTION = """Write what a finished run found, for any method:

  clients.csv   how noisy each client is, and why the method thinks so
  samples.csv   every sample with its label, a suggestion, and its place in the list to review
  labels.csv    the input again, with the suggested labels (.parquet if it was one)

Where the method gives no verdict on samples, confident learning on the final model gives a neutral one, and it is said.
Labels that would break more than they fix, on the rows whose clean_label is known, are not written without --anyway.

  fnll labels runs/fedrn-0123456789ab --out review
"""


def main(argv: Sequence[str]) -> int:
    """Judge again and write."""
    parser = argparse.ArgumentParser(
        prog="fnll labels", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    parser.add_argument("words", nargs="*", metavar="SETTING=VALUE", help="where the data lie now: dataset.file=FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write to")
    parser.add_argument("--anyway", action="store_true", help="write labels that do more harm than good, too")
    args = parser.parse_intermixed_args(list(argv))
    from fnll.harness.finished import reopen, verdict_of  # late: torch takes seconds to import
    from fnll.harness.verdict_files import LABELS, corrected, write_table, write_verdict
    from fnll.harness.verdicts import doubt, on_reviewed
    from fnll.system.files import inside, make_folder

    run = reopen(args.run, args.words)
    verdict = verdict_of(run, args.run)
    folder = make_folder(args.out)
    written = write_verdict(run, folder, verdict)
    changed = int((verdict.suggested != verdict.label).sum())
    why = doubt(run, verdict)
    if why is None or args.anyway:
        suffix, table = corrected(run, verdict)
        written.append(inside(folder, f"{LABELS}{suffix}"))
        write_table(written[-1], table)
        print(f"{changed} of {len(verdict.label)} labels changed")
    if on_reviewed(run, verdict) is None:
        print(
            "no label's truth is known (column clean_label), so nobody can tell whether the changes help: review some"
        )
    print(f"written: {', '.join(map(str, written))}")
    if why is not None and not args.anyway:
        print(f"fnll: labels are not written: {why}; type --anyway to have them all the same", file=sys.stderr)
        return 1
    return 0
