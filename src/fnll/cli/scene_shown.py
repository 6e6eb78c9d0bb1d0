"""What `fnll scene` prints and writes; its options are in `fnll.cli.scene`."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fnll.errors import UserError
from fnll.harness.config import Request, command, compose
from fnll.harness.declared import check_parts, check_settings
from fnll.harness.prepare import made, scenario_of, with_given_clients
from fnll.harness.provenance import described, made_with
from fnll.scenario.card import Card, card
from fnll.scenario.datasets.own_rows import guarded
from fnll.scenario.file import save
from fnll.scenario.scenario import Dataset, Scenario, Truth
from fnll.system.files import inside, make_folder, write_file

ALL_ROWS = 30  # more clients are summarised
EXTREMES = 3  # clients shown at either end
BLOCKS = " ▁▂▃▄▅▆▇█"
CHARTED = 20  # classes that fit into a chart of blocks
WIDE = 120  # columns of a table that goes to a file or a pipe
SEED = "scenario_seed"


class Scene(NamedTuple):
    """A scenario that was made, and what it is known as."""

    known_as: Request
    dataset: Dataset
    scenario: Scenario
    truth: Truth


def made_of(args: argparse.Namespace) -> Scene:
    """Build or load the scenario."""
    request = _request(args.words, args.config_dir)
    known_as = described(request)
    dataset: Dataset = made(request.cfg.dataset, "dataset")
    return Scene(with_given_clients(known_as, dataset), dataset, *scenario_of(request.cfg, dataset))


def show(args: argparse.Namespace, scene: Scene) -> None:
    """Print the scenario's card, and write what was asked for."""
    known_as, dataset, scenario, truth = scene
    facts = card(scenario, truth, dataset.class_names)
    chosen = _clients(args.clients, facts.num_clients)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    _print(console, facts, known_as, chosen)
    if args.save:
        path = save(args.save, dataset, scenario, truth, made_with(known_as))
        words = [*_dataset_words(args.words), "scenario=file", f"scenario.path={path}"]
        _say(console, f"\nscenario file: {path} ({path.stat().st_size / 1000:,.0f} kB); to run on it, type")
        _say(console, f"  {command(words, args.config_dir)}")
    if args.out:
        written = _write(facts, args.out, chosen)
        written += _write_beside(args.words, args.beside, args.out, args.config_dir)
        _say(console, f"\nwritten to {args.out}: {', '.join(path.name for path in written)}")


def _request(words: Sequence[str], config_dirs: Sequence[Path]) -> Request:
    request = compose(words, config_dirs)
    check_settings(request.cfg)
    check_parts(request.cfg, ("dataset", "scenario", "partition", "noise"))
    return request


def _write_beside(words: Sequence[str], beside: Sequence[str], folder: Path, config_dirs: Sequence[Path]) -> list[Path]:
    """The pictures that compare the scenarios of `--beside`."""
    from fnll.scenario.card_compared import draw_compared  # late, as `draw` is

    cards = {}
    for further in beside:
        cfg = _request([*words, *shlex.split(further)], config_dirs).cfg
        dataset: Dataset = made(cfg.dataset, "dataset")
        cards[further] = card(*scenario_of(cfg, dataset), dataset.class_names)
    return draw_compared(cards, folder) if cards else []


def _clients(words: str | None, num_clients: int) -> list[int]:
    """The clients that were asked for, each once."""
    if words is None:
        return []
    numbers = [word.strip() for word in words.split(",") if word.strip()]
    if not numbers or not all(re.fullmatch(r"\d+", word) and int(word) < num_clients for word in numbers):
        raise UserError(f"--clients takes numbers from 0 to {num_clients - 1}, separated by commas, got {words!r}")
    return list(dict.fromkeys(map(int, numbers)))


def _dataset_words(words: Sequence[str]) -> list[str]:
    """The words that choose the data, without which the file cannot be used."""
    return [word for word in words if re.match(r"\+{0,2}dataset[.=]", word)]


def _write(facts: Card, folder: Path, chosen: Sequence[int]) -> list[Path]:
    from fnll.scenario.card_figures import draw  # late: the table alone needs no matplotlib

    if not chosen and facts.clean is not None:
        noisiest = np.argsort(-facts.realised, kind="stable")[:EXTREMES]
        chosen = sorted(int(k) for k in noisiest if facts.realised[k] > 0)
    try:
        table = inside(make_folder(folder), "clients.csv")
        clients = facts.table()
        clients["client"] = clients["client"].map(guarded)
        write_file(table, clients.to_csv(index=False))
        return [table, *draw(facts, folder, chosen)]
    except OSError as error:
        raise UserError(f"cannot write to --out {folder}: {error.strerror or error}") from error


def _print(console: Console, facts: Card, request: Request, chosen: Sequence[int]) -> None:
    for line in _header(facts, request):
        _say(console, line)
    console.print()
    if facts.num_clients <= ALL_ROWS:
        console.print(_table(facts, [(k, "") for k in range(facts.num_clients)]))
    else:
        console.print(_summary(facts))
        console.print()
        console.print(_table(facts, _extremes(facts, chosen)))
    if facts.remarks:
        console.print()
    for remark in facts.remarks:
        console.print(f"[yellow]![/] {escape(remark.text)}", soft_wrap=True)


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, markup=False)


def _header(facts: Card, request: Request) -> Iterator[str]:
    held_out = f" (and {facts.held_out:,} held out for validation)" if facts.held_out else ""
    yield (
        f"{facts.name}: {facts.num_clients:,} clients, {facts.sizes.sum():,} samples{held_out}, "
        f"{facts.num_classes} classes, fingerprint {facts.fingerprint}"
    )
    if facts.origin != facts.fingerprint:
        yield f"made from the scenario with fingerprint {facts.origin}"
    for group in ("partition", "noise"):
        yield f"{group} {request.choices.get(group, '')} {_settings(request.cfg[group])}".rstrip()
    yield f"{SEED} {request.cfg[SEED]}"
    if facts.clean is not None:
        noisy = int((facts.realised > 0).sum())
        yield f"{facts.noise:.1%} of the labels are wrong; {noisy} of {facts.num_clients} clients have wrong labels"


def _settings(node: Any) -> str:
    return " ".join(
        f"{key}={value}" for key, value in node.items() if not str(key).startswith("_") and key != "annotator"
    )


def _summary(facts: Card) -> Table:
    """Minimum, quartiles and maximum over clients."""
    table = _columns("over clients", "min", "25 %", "median", "75 %", "max")
    levels: list[tuple[str, np.ndarray, str]] = [
        ("size", facts.sizes, ",.0f"),
        ("classes", (facts.counts > 0).sum(1), ".0f"),
        ("nominal noise", facts.nominal, ".2f"),
        ("realised noise", facts.realised, ".2f"),
    ]
    for name, values, shape in levels:
        known = values[np.isfinite(values)]
        if len(known):
            table.add_row(name, *(f"{value:{shape}}" for value in np.quantile(known, [0, 0.25, 0.5, 0.75, 1])))
    return table


def _extremes(facts: Card, chosen: Sequence[int]) -> list[tuple[int, str]]:
    """Clients worth looking at and why, each once: those chosen, or the ends of every scale."""
    if chosen:
        return [(k, "") for k in chosen]
    by_size = np.argsort(facts.sizes, kind="stable")
    by_classes = np.argsort((facts.counts > 0).sum(1), kind="stable")
    by_noise = np.argsort(-np.nan_to_num(facts.realised), kind="stable")
    noisy = [k for k in by_noise if facts.realised[k] > 0]
    ends: dict[str, Sequence[int] | np.ndarray] = {
        "smallest": by_size,
        "largest": by_size[::-1],
        "fewest classes": by_classes,
        "noisiest": noisy,
    }
    why: dict[int, list[str]] = {}
    for reason, order in ends.items():
        for k in order[:EXTREMES]:
            why.setdefault(int(k), []).append(reason)
    return [(k, ", ".join(reasons)) for k, reasons in why.items()]


def _table(facts: Card, rows: Sequence[tuple[int, str]]) -> Table:
    relabelled = bool(((facts.counts > 0) != (facts.seen > 0)).any())
    charted = facts.num_classes <= CHARTED
    names = ["client", "size", "classes", *(["observed"] if relabelled else []), "nominal", "realised"]
    table = _columns(*names)
    table.columns[0].justify = "right"
    for name in ([] if not charted else ["class shares"]) + [""]:
        table.add_column(name)
    remarks = facts.table()["remarks"]
    for k, why in rows:
        present = [f"{(facts.counts[k] > 0).sum()}/{facts.num_classes}"]
        present += [f"{(facts.seen[k] > 0).sum()}"] if relabelled else []
        chart = [_chart(facts.counts[k])] if charted else []
        said = "; ".join(text for text in (why, remarks[k]) if text)
        levels = (_level(facts.nominal[k]), _level(facts.realised[k]))
        table.add_row(escape(facts.called(k)), f"{facts.sizes[k]:,}", *present, *levels, *chart, escape(said))
    return table


def _columns(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _level(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _chart(counts: np.ndarray) -> str:
    """One block per class, as high as its share of the client's largest class; a blank is a missing class."""
    heights = np.ceil(counts / max(1, int(counts.max())) * (len(BLOCKS) - 1)).astype(int)
    return "".join(BLOCKS[height] for height in heights)
