"""`fnll scene`: what a scenario looks like, before anything is run on it; and its file, to share it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fnll.cli.waiting import waiting
from fnll.errors import UserError

DESCRIPTION = """Show a scenario: who has how many samples of which class, how noisy every client is, and warnings
about possible problems. It takes the settings of `fnll run`; those unrelated to data, partition and noise are ignored.

  fnll scene                                                the default scenario, as a table
  fnll scene partition=bernoulli_dirichlet partition.p=0.3 num_clients=100
  fnll scene noise=ramp noise.high=0.8 --out scene          figures, and clients.csv with all clients
  fnll scene partition=bernoulli_dirichlet --beside partition.p=0.7 --beside partition.p=0.3 --out scene
  fnll scene dataset=cifar10 noise=h_idn --save ours.npz    one small file without images, to share
  fnll scene dataset=cifar10 scenario=file scenario.path=ours.npz
  fnll run   dataset=cifar10 scenario=file scenario.path=ours.npz method=fedcorr

nominal is the noise level a client was meant to have, realised the share of its labels that are wrong. Two runs are
comparable if they show the same fingerprint.
"""


def main(argv: Sequence[str]) -> int:
    """Read the words; `show` does the rest."""
    args = _parser().parse_intermixed_args(list(argv))
    _require_beside(args.beside, args.out)
    with waiting("making the scenario ..."):
        from fnll.cli.scene_shown import made_of, show  # late: --help needs no torch

        scene = made_of(args)
    show(args, scene)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fnll scene", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="SETTING=VALUE", help="Hydra overrides, as for fnll run")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the scenario to one small file")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write figures (SVG and PNG) and clients.csv")
    parser.add_argument(
        "--beside", action="append", default=[], metavar="'SETTING=VALUE ...'",
        help="with --out: one more panel of a picture that compares scenarios, with these further settings; repeat it",
    )  # fmt: skip
    parser.add_argument(
        "--clients", metavar="K,K,...", help="clients to show and to draw label transitions of (default: the noisiest)"
    )
    parser.add_argument(
        "--config-dir", "-cd", type=Path, action="append", default=[], metavar="DIR", help="a folder of more configs"
    )
    return parser


def _require_beside(beside: Sequence[str], out: Path | None) -> None:
    if beside and (len(beside) < 2 or out is None):
        raise UserError(
            "--beside compares scenarios in one picture: give it twice or more, and --out DIR for the picture"
        )
