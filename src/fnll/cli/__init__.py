"""The command line: `fnll run`, `fnll methods`, `fnll scene`, `fnll check`, ...

Exit codes: 0 good, 1 a run failed, 2 the user's mistake.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from fnll.errors import UserError, nearest

atexit.register(gc.freeze)  # Python looks for garbage when it ends, in all of torch: two seconds, for nothing


@dataclass(frozen=True)
class Command:
    """A subcommand: what it does in a line, and the module whose `main(argv) -> int` does it."""

    summary: str
    module: str

    def __call__(self, argv: Sequence[str]) -> int:
        main: Callable[[Sequence[str]], int] = import_module(self.module).main  # late: torch takes seconds to import
        return main(argv)


COMMANDS = {
    "run": Command("one run: fnll run method=fedprox noise.rho=0.4 seed=1", "fnll.cli.run"),
    "sweep": Command("a grid of runs: fnll sweep experiment=rho_tau method=fedavg,fedcorr", "fnll.cli.sweep"),
    "report": Command("tables, figures and a page from a directory of runs", "fnll.cli.report"),
    "audit": Command("your own data: which clients, which samples: fnll audit FILE.csv --out DIR", "fnll.cli.audit"),
    "labels": Command("what a run found: clients, suspicious samples, corrected labels", "fnll.cli.labels"),
    "verify": Command("whether a store still holds what its runs wrote", "fnll.cli.verify"),
    "methods": Command("the installed methods: what they do, their papers, BibTeX", "fnll.cli.methods"),
    "scene": Command("show a scenario: clients, sizes, classes, noise, fingerprint", "fnll.cli.scene"),
    "dashboard": Command("the W&B workspace as code; a file when offline", "fnll.cli.dashboard"),
    "bench": Command("how fast: phases of a round, and ratios to bare PyTorch", "fnll.cli.bench"),
    "new": Command("start a method of your own: fnll new method NAME", "fnll.cli.new"),
    "check": Command("test a method against the rules of a fair comparison", "fnll.cli.check"),
}

EPILOG = """commands:
{commands}

Settings are Hydra overrides: `fnll run method=fedprox method.mu=0.1 noise.rho=0.6 rounds=30 seed=0`.
`--allow MODULE` lets configs name classes of a module of yours that is not installed as a plugin.
`fnll COMMAND --help` says more; `fnll run --cfg job` prints every setting with its value.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to a subcommand and turn a user's mistake into one message and exit code 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="fnll",
        usage="fnll COMMAND [...]",
        description="A benchmark suite for federated learning with noisy labels.",
        epilog=EPILOG.format(commands=listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    if not argv or argv[0] in ("-h", "--help"):
        parser.print_help()
        return 0
    if argv[0] == "--version":
        from fnll import __version__

        print(f"fnll {__version__}")
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("hydra").propagate = False  # it prints for itself
    for noisy in ("lightning", "lightning.fabric", "lightning.pytorch", "wandb", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        if argv[0] not in COMMANDS:
            raise UserError(f"there is no command {argv[0]!r}; {nearest(argv[0], COMMANDS)}")
        from fnll.harness.trust import taken_from

        return COMMANDS[argv[0]](taken_from(argv[1:]))
    except UserError as error:
        print(f"fnll: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fnll: interrupted; run the same command again to resume from the last checkpoint", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output left, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
