"""`fnll report`: tables, figures and a page from a directory of runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fnll.cli.waiting import say

# As the report's modules have them, which take seconds to import; a test compares.
RULES = ("last10", "last", "best", "best_val")
TARGETS = "0.8,0.9"


def main(argv: Sequence[str]) -> int:
    """Read the words; the report's own module does the rest."""
    parser = argparse.ArgumentParser(
        prog="fnll report", description="Tables, figures and one HTML page from a directory of runs."
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    say(f"writing the report to {args.out} ...")
    from fnll.report import command  # late: --help needs no pandas, matplotlib or torch

    return command.main(args)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fnll report`."""
    parser.add_argument(
        "runs_dir", type=Path, nargs="+", metavar="RUNS_DIR", help="where runs were written to; several are merged"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report"), metavar="DIR", help="where the report goes (default: report)"
    )
    parser.add_argument("--reference", help="row that differences are taken to (default: fedavg)")
    parser.add_argument("--metric", default="test/accuracy", help="what the headline compares (default: %(default)s)")
    parser.add_argument(
        "--select", default="last10", choices=RULES, help="which score of a run to compare (default: last10)"
    )
    parser.add_argument("--targets", default=TARGETS, help="accuracies for the cost tables (default: %(default)s)")
    parser.add_argument(
        "--published", nargs="?", const="", metavar="TABLE",
        help="put the papers' numbers beside ours: of one table, as fedcorr_table2, or of all that the runs belong to",
    )  # fmt: skip
    parser.add_argument(
        "--reference-curves", type=Path, metavar="FILE", help="a CSV of curves that others logged, laid over ours"
    )
    parser.add_argument(
        "--rows", default="", metavar="A,B,...", help="methods to compare, in the order of the table (default: all)"
    )
    parser.add_argument(
        "--names", default="", metavar="A=NAME,...", help="other names of rows, as fedcorr=Ours (default: their YAML's)"
    )
    parser.add_argument("--label", default="", help=r"\label of the headline in LaTeX (default: tab:main_last10)")
    parser.add_argument(
        "--mixtures", type=int, default=0, metavar="N",
        help="score detection of noisy clients over N mixtures per run, as FedNoRo's table 3 does with 10000",
    )  # fmt: skip
    parser.add_argument("--figures", action=argparse.BooleanOptionalAction, default=True, help="draw the figures")
