"""A whole report as files: the page, the tables in four formats, the figures, and the frames behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from fnll.report.analysis import Analysis, analyse
from fnll.report.beside import Others
from fnll.report.best_last import best_last_table
from fnll.report.common import caption, settings_table
from fnll.report.figures import encode
from fnll.report.footnotes import caveats
from fnll.report.gallery import Plate, gallery
from fnll.report.html import Picture, page
from fnll.report.latex import latex_document, to_latex
from fnll.report.listings import (
    detection_table,
    method_table,
    missing_table,
    rank_table,
    resource_table,
    scenario_table,
)
from fnll.report.own_clients import clients_table
from fnll.report.render import as_csv, to_markdown
from fnll.report.render import files as table_files
from fnll.report.select import available_rules
from fnll.report.table import Table
from fnll.report.tables import cost_table, difference_table, gap_table, main_table
from fnll.system.files import inside, own_folder, write_file

TARGETS = (0.8, 0.9)
WIDE = 7  # inches of figure beyond which half a page is too small


@dataclass(frozen=True)
class Report:
    """What was written."""

    headline: Table
    html: Path
    out: Path


def all_tables(analysis: Analysis, targets: Sequence[float] = TARGETS) -> list[Table]:
    """The tables the store has the runs for; the headline comes first, then its number by the other rules."""
    store = analysis.store
    others = [rule for rule in available_rules(store) if rule != analysis.rule.name]
    found = [main_table(analysis)]
    found += [main_table(analyse(store, analysis.metric, rule, analysis.reference)) for rule in others]
    found.append(best_last_table(analysis))
    if analysis.reference and len(store.methods) > 1:
        found.append(difference_table(analysis))
    if analysis.reference and analysis.oracle:
        found.append(gap_table(analysis))
    if analysis.ranking is not None:
        found.append(rank_table(analysis))
    if {"comm/client_updates", "test/accuracy"} <= set(store.metrics):
        found += [cost_table(analysis, target) for target in targets]
    found.append(resource_table(analysis))
    if any(str(key).startswith("detect/") for key in store.metrics):
        found.append(detection_table(store))
    if (named := clients_table(store)) is not None:
        found.append(named)
    found += [settings_table(store), scenario_table(store), method_table(analysis)]
    missing = missing_table(store)
    return [dressed(table, analysis) for table in ([*found, missing] if missing.rows else found)]


def dressed(table: Table, analysis: Analysis) -> Table:
    """A table of numbers with what was compared and what may spoil it, if it does not say so already."""
    if table.words or table.caption:
        return table
    return replace(table, caption=caption(analysis.store), caveats=caveats(analysis))


def write(
    analysis: Analysis,
    out: Path,
    targets: Sequence[float] = TARGETS,
    *,
    with_figures: bool = True,
    others: Others | None = None,
    label: str = "",
) -> Report:
    r"""Write everything below `out`; files of an earlier report there are replaced.

    `label` is the headline's \label in LaTeX; those of the other tables start with it.
    """
    others = others or Others()
    made = [*all_tables(analysis, targets), *(dressed(table, analysis) for table in others.tables)]
    if label:
        made = [replace(made[0], label=label), *(replace(table, label=f"{label}-{table.name}") for table in made[1:])]
    _write_tables(made, out)
    pictures: list[Picture] = []
    if with_figures:
        pictures = _write_figures(chain(gallery(analysis), others.plates()), own_folder(inside(out, "figures")))
    frames = own_folder(inside(out, "frames"))
    write_file(inside(frames, "runs.csv"), as_csv(analysis.store.runs.drop(columns=["manifest", "path", "warnings"])))
    write_file(inside(frames, "metrics.csv"), as_csv(analysis.store.metrics))
    html = inside(out, "report.html")
    write_file(html, page(analysis, made[0], made[1:], pictures))
    return Report(made[0], html, out)


def _write_tables(made: Sequence[Table], out: Path) -> None:
    folder = own_folder(inside(out, "tables"))
    for table in made:
        for suffix, content in table_files(table):
            write_file(inside(folder, f"{table.name}.{suffix}"), content)
    write_file(inside(out, "tables.tex"), latex_document(map(to_latex, made)))
    first = sorted(made, key=lambda table: table.name != "settings")  # what was compared comes before the numbers
    write_file(inside(out, "report.md"), "\n".join(map(to_markdown, first)))


def _write_figures(plates: Iterable[Plate], folder: Path) -> list[Picture]:
    pictures = []
    for plate in plates:
        svg = encode(plate.figure, "svg")
        write_file(inside(folder, f"{plate.name}.svg"), svg)
        write_file(inside(folder, f"{plate.name}.png"), encode(plate.figure, "png"))
        width, height = plate.figure.get_size_inches()
        size = (round(96 * width), round(96 * height))  # CSS has 96 pixels to the inch
        pictures.append(Picture(plate.name, plate.caption, svg, *size, wide=width > WIDE))
    return pictures
