"""`fnll bench`: how fast, against bare PyTorch loops that are measured in the same run."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from fnll import __version__
from fnll.bench import SUITES
from fnll.bench.show import markdown, show
from fnll.errors import UserError, nearest, require_integer
from fnll.system.files import make_folder, read_json, write_json
from fnll.system.processes import usable_cores

BUSY = 0.5  # processes that wait for a core before we start: more, and times mean little

DESCRIPTION = """Seconds and samples per second, as ratios to bare PyTorch loops over the same batches in the same run.

  fnll bench model=lenet5 dataset=cifar10 method=fedprox    where the time of a round goes
  fnll bench --suite train,round                            the ratios that docs/speed.md states
  fnll bench --suite all --json speed.json
"""


def main(argv: Sequence[str]) -> int:
    """Measure what was asked for; print it, and write it down."""
    args = _parser().parse_intermixed_args(list(argv))
    console = Console(highlight=False)
    if args.read:
        console.print(markdown(_read(args.read)), soft_wrap=True, markup=False)
        return 0
    if args.repeat is not None:
        require_integer("--repeat", args.repeat, 1, "how often each measurement is repeated")
    names = _chosen(args.suite)
    if args.json:
        _require_place(args.json)
    from fnll.executors.numerics import limit_threads  # late, as in `surroundings`: --help needs no torch

    limit_threads(1)
    record = {**surroundings(), "suites": {}}
    if record["host"]["load"] > BUSY:
        console.print(f"the machine is busy (load {record['host']['load']:.1f}): trust ratios more than times")
    for name in names:
        console.print(f"{name}: {SUITES[name].summary} ...", soft_wrap=True)
        record["suites"][name] = SUITES[name](args.words, args.repeat).record()
        show(console, name, record["suites"][name])
        if args.json:
            write_json(args.json, record)  # after each, so that an interruption loses little
    return 0


def surroundings() -> dict[str, Any]:
    """What a measurement depends on besides the code."""
    from fnll.harness.manifest import commit

    return {
        "fnll": __version__,
        "commit": commit(),
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("torch", "numpy")}},
        "host": {
            "platform": platform.platform(),
            "processor": processor(),
            "cores": usable_cores(),
            "load": os.getloadavg()[0],
        },
    }


def processor() -> str:
    """The processor's name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _parser() -> argparse.ArgumentParser:
    suites = "\n".join(f"  {name:<8} {suite.summary}" for name, suite in SUITES.items())
    parser = argparse.ArgumentParser(
        prog="fnll bench",
        description=DESCRIPTION,
        epilog=f"suites:\n{suites}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="SETTING=VALUE", help="Hydra overrides, as for fnll run")
    parser.add_argument("--suite", default="phases", metavar="NAMES", help="suites, separated by commas, or all")
    parser.add_argument("--repeat", type=int, metavar="N", help="repetitions; ratios use the best (default: by suite)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to FILE")
    parser.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="measure nothing; print such files as a Markdown table"
    )
    return parser


def _chosen(names: str) -> list[str]:
    if names == "all":
        return list(SUITES)
    chosen = [name for name in names.split(",") if name]
    for name in chosen:
        if name not in SUITES:
            raise UserError(f"there is no suite {name!r}; {nearest(name, [*SUITES, 'all'])}")
    return chosen


def _require_place(path: Path) -> None:
    """Complain before minutes of measuring, not after."""
    try:
        make_folder(path.parent)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise PermissionError("not a file that can be written")
    except OSError as error:
        raise UserError(f"--json {path}: cannot write there ({error.strerror or error}); name another file") from None


def _read(paths: Sequence[Path]) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for path in paths:
        try:
            found += read_json(path)["suites"].items()
        except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"--read {path}: this is not what fnll bench --json writes ({reason})") from None
    return found
