"""`fnll report`: tables, figures and a page from a directory of runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fnll.report import command


def main(argv: Sequence[str]) -> int:
    """Read the words; the report's own module does the rest."""
    parser = argparse.ArgumentParser(
        prog="fnll report", description="Tables, figures and one HTML page from a directory of runs."
    )
    command.add_arguments(parser)
    return command.main(parser.parse_args(argv))
