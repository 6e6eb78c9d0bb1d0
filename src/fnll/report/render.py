"""Tables in Markdown, HTML, CSV and on the terminal. Whatever comes from a config is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pandas as pd
from markupsafe import Markup, escape
from rich import box
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from fnll.report.latex import to_latex
from fnll.report.table import Entry, Row, Table

TIED, TWIN = "≈", "≡"
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # how spreadsheets know one


def to_markdown(table: Table) -> str:
    """A GitHub table with its title above and its notes below."""
    lines = [
        _markdown_line(map(markdown_text, table.columns)),
        _markdown_line(["---", *["---" if table.words else "---:"] * (len(table.columns) - 1)]),
        *(_markdown_line([markdown_text(row.label), *map(_markdown_entry, row.entries)]) for row in table.rows),
    ]
    notes = "".join(f"\n- {markdown_text(note)}" for note in table.footnotes)
    caption = f"{markdown_text(table.caption)}\n\n" if table.caption else ""
    head = f"### {markdown_text(table.title)}\n\n{caption}"
    return head + "\n".join(lines) + "\n" + (f"{notes}\n" if notes else "")


def markdown_text(text: str) -> str:
    """Text that Markdown leaves alone."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat).replace("<", "&lt;").replace(">", "&gt;")


def _markdown_line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _markdown_entry(entry: Entry) -> str:
    text = markdown_text(entry.text)
    if entry.missing:
        return f"*{text}*" if text else ""
    return f"**{text}**" if entry.best else " ".join(filter(None, [text, _sign(entry)]))


def to_html(table: Table, *, alone: bool = True) -> Markup:
    """A `<figure>` with caption, table and notes; classes best, tied, twin and missing mark its cells.

    A page that says once what was compared and what may spoil it shows its tables not `alone`.
    """
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(_stacked(column)) for column in table.columns)
    body = Markup("\n").join(map(_html_row, table.rows))
    shown = table.footnotes if alone else table.notes
    notes = Markup("").join(Markup("<li>{}</li>").format(note) for note in shown)
    caption = Markup('<p class="compared">{}</p>').format(table.caption) if table.caption and alone else ""
    kind = "words" if table.words else "numbers"
    return Markup(
        '<figure class="table {}" id="table-{}"><figcaption>{}</figcaption>{}\n<div class="scroll" tabindex="0" '
        'role="region" aria-label="{}"><table>\n<thead><tr>{}</tr></thead>\n<tbody>{}</tbody>\n'
        "</table></div>{}</figure>"
    ).format(
        kind, table.name, table.title, caption, table.title, head, body,
        Markup('<ul class="notes">{}</ul>').format(notes) if shown else "",
    )  # fmt: skip


def _stacked(label: str) -> Markup:
    """A column's label with its parts below each other: columns of numbers stay narrow."""
    return Markup("<br>").join(label.split(" · "))


def _html_row(row: Row) -> Markup:
    cells = Markup("").join(map(_html_entry, row.entries))
    return Markup('<tr{}><th scope="row">{}</th>{}</tr>').format(
        Markup(' class="apart"') if row.apart else "", row.label, cells
    )


def _html_entry(entry: Entry) -> Markup:
    names = [name for name in ("best", "tied", "twin", "missing") if getattr(entry, name)]
    attributes = Markup(' class="{}"').format(" ".join(names)) if names else Markup("")
    if entry.hint:
        attributes += Markup(' title="{}"').format(entry.hint)
    meaning = "tied with the best" if entry.tied else "another row, bit for bit"
    mark = Markup(' <abbr title="{}">{}</abbr>').format(meaning, sign) if (sign := _sign(entry)) else ""
    return Markup("<td{}>{}{}</td>").format(attributes, escape(entry.text), mark)


def _sign(entry: Entry) -> str:
    return TIED if entry.tied else TWIN if entry.twin else ""


def to_csv(table: Table) -> str:
    """The numbers behind a table, unrounded and tidy, with the run ids of every cell."""
    return as_csv(table.data)


def as_csv(frame: pd.DataFrame) -> str:
    """A frame as CSV; words that a spreadsheet would take for formulas have an apostrophe in front."""
    words = frame.select_dtypes(["object", "category", "string"])
    return frame.assign(**{str(name): column.map(_no_formula) for name, column in words.items()}).to_csv(
        index=False, lineterminator="\n"
    )


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value


def to_rich(table: Table, width: int | None = None) -> list[RichTable]:
    """The table for a terminal of some width: columns that do not fit go into further blocks below."""
    room = (width or 10**6) - _wide([table.columns[0], *(row.label for row in table.rows)])
    blocks: list[list[int]] = [[]]
    left = room
    for i, column in enumerate(table.columns[1:]):
        needed = _wide([*column.split(" · "), *(f"{row.entries[i].text} {TIED}" for row in table.rows)])
        if needed > left and blocks[-1]:
            blocks.append([])
            left = room
        blocks[-1].append(i)
        left -= needed
    return [_rich_block(table, block, title=not i) for i, block in enumerate(blocks)]


def _wide(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts)) + 3  # with the padding of a column


def _rich_block(table: Table, columns: Sequence[int], *, title: bool) -> RichTable:
    rich = RichTable(box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    rich.title = Text(table.title) if title else None
    rich.add_column(Text(table.columns[0]), no_wrap=True)
    for i in columns:
        heading = Text("\n".join(table.columns[i + 1].split(" · ")))
        rich.add_column(heading, justify="left" if table.words else "right", no_wrap=True)
    for n, row in enumerate(table.rows):
        if n and row.apart != table.rows[n - 1].apart:
            rich.add_section()
        rich.add_row(Text(row.label), *(_rich_entry(row.entries[i]) for i in columns))
    return rich


def _rich_entry(entry: Entry) -> Text:
    if entry.missing:
        return Text(entry.text, style="dim italic")
    text = f"{entry.text} {_sign(entry) or ' '}" if entry.text else ""
    return Text(text, style="bold green" if entry.best else "")


def files(table: Table) -> Sequence[tuple[str, str]]:
    """Suffix and content of the table in every format."""
    return (
        ("md", to_markdown(table)),
        ("tex", to_latex(table)),
        ("csv", to_csv(table)),
        ("html", str(to_html(table)) + "\n"),
    )
