"""`fnll audit`: one command for people who have noisy labels and do not know the methods."""

from __future__ import annotations

import argparse
import logging
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fnll.errors import UserError, require

if TYPE_CHECKING:
    from fnll.audit.joint import Joint
    from fnll.audit.plan import Plan

DESCRIPTION = """Audit the labels of your own federation. FILE is a CSV or Parquet file with the columns file (or x:
pixel values), label, client, and if you have them split and clean_label (for rows that somebody reviewed).

  fnll audit sites.csv --out audit                      about half an hour at most
  fnll audit sites.csv --out audit --minutes 5          a quicker, coarser panel
  fnll audit sites.csv --out again --plan audit/plan.json   the same plan, without the clock

It writes clients.csv (how noisy is each client), samples.csv (what to review, worst first), audit.html (both, with
pictures) and plan.json. Runs are kept in DIR/runs, so an interrupted audit resumes. The input is never changed.
"""


def main(argv: Sequence[str]) -> int:
    """Plan, run the panel, write the verdict."""
    args = _arguments(argv)
    from fnll.audit import plan as plans  # late: torch takes seconds to import
    from fnll.audit.joint import Joint
    from fnll.audit.panel import convene
    from fnll.harness.prepare import prepare
    from fnll.scenario.card import card
    from fnll.system.files import inside, make_folder, write_atomic

    logging.getLogger("fnll.harness.verdict_files").setLevel(logging.ERROR)  # of single runs: the joint verdict counts
    require(args.minutes > 0, f"--minutes must be greater than 0, got {args.minutes}")
    data = plans.data_words(args.file, args.root, args.ignore, args.size)
    plan = plans.read(args.plan) if args.plan else plans.fixed(data, args.minutes, args.seed, args.methods)
    first = prepare(plans.request(data, plan, plan.methods[0], 1, args.out))
    facts = card(first.scenario, first.truth, first.dataset.class_names)
    sizes = ", ".join(f"{facts.called(k)} {facts.sizes[k]}" for k in range(facts.num_clients)[:20])
    print(
        f"{facts.name}: {len(first.scenario.labels):,} samples, {facts.num_classes} classes; clients (samples of the "
        f"first fold): {sizes}"
    )
    warnings = [remark.text for remark in facts.remarks]
    warnings += [f"{method} is left out: {why}" for method, why in plan.left_out.items()]
    for text in warnings:
        print(f"! {text}")
    minutes = max(1, round(plan.estimate / 60))
    print(
        f"plan: {', '.join(plan.methods)}; {plan.folds} folds of {plan.rounds} rounds, about {minutes} "
        f"minute{'' if minutes == 1 else 's'}"
    )
    folder = make_folder(args.out)
    write_atomic(inside(folder, "plan.json"), plan.to_json())
    run, members = convene(data, plan, folder / "runs", partial(print, flush=True), warnings)
    joint = Joint(run, tuple(members))
    if why := joint.weakness():
        warnings.insert(0, why)
        print(f"! {why}")
    if why := joint.doubt():
        warnings.insert(0, f"do not take the suggested labels: {why}")
        print(f"! {warnings[0]}")
    _write(joint, plan, warnings, folder, args)
    for row in joint.clients_table().to_dict("records"):
        said = "NOISY" if row["noisy"] else ""
        level = f"{row['noise_level']:.0%} wrong ({row['low']:.0%} to {row['high']:.0%})"
        print(f"  {row['client']}: {level} {said}".rstrip())
    print(f"written: {', '.join(str(folder / name) for name in ('audit.html', 'clients.csv', 'samples.csv'))}")
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fnll audit", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the table")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write to")
    parser.add_argument("--minutes", type=float, default=30, help="the time to plan for (default: 30)")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="repeat an earlier audit's plan.json")
    parser.add_argument("--root", metavar="DIR", help="the folder or zip file that file names start from")
    parser.add_argument("--ignore", type=_words, default=(), metavar="A,B", help="columns of your own to pass over")
    parser.add_argument("--methods", type=_words, default=(), metavar="A,B", help="the panel (default: chosen for you)")
    parser.add_argument("--size", type=int, metavar="N", help="look at images of N x N pixels (default: at most 32)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(list(argv))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _write(joint: Joint, plan: Plan, warnings: Sequence[str], folder: Path, args: argparse.Namespace) -> None:
    from fnll.audit.page import page
    from fnll.system.files import inside, write_atomic

    words = ["fnll", "audit", str(args.file), "--out", "again", "--plan", "plan.json"]
    words += ["--root", args.root] if args.root else []
    words += ["--ignore", ",".join(args.ignore)] if args.ignore else []
    words += ["--size", str(args.size)] if args.size else []
    try:
        write_atomic(inside(folder, "clients.csv"), joint.clients_table().to_csv(index=False))
        write_atomic(inside(folder, "samples.csv"), joint.samples_table().to_csv(index=False))
        write_atomic(inside(folder, "audit.html"), page(joint, plan, warnings, shlex.join(words)))
    except OSError as error:
        raise UserError(f"cannot write to --out {folder}: {error.strerror or error}") from error
