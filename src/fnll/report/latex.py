"""Tables in LaTeX: fragments to `\\input`, and one document that compiles as it is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import zip_longest
from textwrap import wrap

from fnll.plotting.style import JOINED
from fnll.report.table import Entry, Table

SENTENCE = 50  # characters beyond which a text is broken into lines
NARROW = 18  # letters of a heading's line
WIDEST = 6  # columns of numbers that fit across a page; further ones go into a second block below
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "[": "{[}", "]": "{]}", "*": "{*}",  # each means something after a line's end
    "|": r"\textbar{}", '"': r"\symbol{34}", "`": r"\textasciigrave{}",
    "±": r"$\pm$", "−": "$-$", "≈": r"$\approx$", "≡": r"$\equiv$", "≥": r"$\geq$", "≤": r"$\leq$", "×": r"$\times$",
    "·": r"$\cdot$", "–": "--", "—": "---", "“": "``", "”": "''", "’": "'", "…": r"\dots{}", "→": r"$\to$",
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "ζ": r"$\zeta$", "η": r"$\eta$", "λ": r"$\lambda$",
    "μ": r"$\mu$", "ρ": r"$\rho$", "τ": r"$\tau$", "π": r"$\pi$", "θ": r"$\theta$", "κ": r"$\kappa$",
}  # fmt: skip
ASSIGNED = re.compile(r"([αβγζηλμρτπθκ]) ?= ?(\d+(?:\.\d+)?)")  # $\rho=0.4$ is one formula
DOCUMENT = r"""\documentclass[10pt]{article}
\usepackage[T1]{fontenc}
\usepackage{textcomp}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage[a4paper,landscape,margin=14mm]{geometry}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


def to_latex(table: Table) -> str:
    r"""A `table` float for `\input`, needing booktabs only; columns beyond a page's width go into further blocks."""
    width = len(table.columns) if table.words else WIDEST
    starts = range(1, len(table.columns), width)
    blocks = "\n\\par\\medskip\n".join(_latex_block(table, start, start + width) for start in starts)
    notes = " ".join(latex_text(note) for note in table.footnotes)
    said = " ".join(f"{latex_text(text)}." for text in (table.title, table.caption) if text)
    label = re.sub(r"[^A-Za-z0-9:._-]", "-", table.label or f"tab:{table.name}")
    size = "footnotesize" if table.words and len(table.columns) > WIDEST else "small"
    return (
        f"\\begin{{table}}[tp]\n\\centering\\{size}\n\\caption{{{said}}}\n\\label{{{label}}}\n\\par\\smallskip\n{blocks}\n"
        + (f"\\par\\medskip\n\\parbox{{0.95\\linewidth}}{{\\footnotesize {notes}}}\n" if notes else "")
        + "\\end{table}\n"
    )


def latex_document(fragments: Iterable[str]) -> str:
    """A complete document of tables; it compiles as it is."""
    return DOCUMENT % "\n\\clearpage\n".join(fragments)


def latex_text(text: str) -> str:
    """Text that LaTeX prints as it stands; a character beyond Latin and the papers' symbols becomes its code point."""
    parts = ASSIGNED.split(" ".join(text.split()))  # text, symbol, number, text, …
    plain = ["".join(map(_latex_character, part)) for part in parts[::3]]
    maths = [f"{LATEX[symbol][:-1]}={value}$" for symbol, value in zip(parts[1::3], parts[2::3], strict=True)]
    return "".join(word for pair in zip_longest(plain, maths, fillvalue="") for word in pair)


def _latex_character(character: str) -> str:
    if character in LATEX:
        return LATEX[character]
    if character.isascii():
        return character if character.isprintable() else " "
    if "À" <= character <= "ÿ":  # Latin-1 letters, which the T1 encoding has (× is in the table, ÷ is not a letter)
        return character if character.isalpha() else r"$\div$"
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return latex_text(plain) if plain.strip() else f"\\texttt{{U+{ord(character):04X}}}"


def _latex_block(table: Table, start: int, stop: int) -> str:
    columns = table.columns[start:stop]
    body: list[str] = []
    for i, row in enumerate(table.rows):
        if i and row.apart != table.rows[i - 1].apart:
            body.append("\\midrule")
        body.append(_latex_line([latex_text(row.label), *map(_latex_entry, row.entries[start - 1 : stop - 1])]))
    heading = latex_text if table.words else _latex_heading
    head = _latex_line([latex_text(table.columns[0]), *map(heading, columns)])
    shape = _paragraph(row.label for row in table.rows) + "".join(
        _latex_column(table, i) for i in range(start - 1, start - 1 + len(columns))
    )
    return "\n".join(
        [f"\\begin{{tabular}}{{{shape}}}", "\\toprule", head, "\\midrule", *body, "\\bottomrule", "\\end{tabular}"]
    )


def _latex_column(table: Table, i: int) -> str:
    """Numbers to the right, words to the left, and sentences in a paragraph of their own."""
    if not table.words:
        return "r"
    return _paragraph(row.entries[i].text for row in table.rows)


def _paragraph(texts: Iterable[str]) -> str:
    return r"p{0.25\linewidth}" if any(len(text) > SENTENCE for text in texts) else "l"


def _latex_heading(text: str) -> str:
    """The parts of a scenario's name below each other: three of them side by side are wider than a page."""
    lines = [line for part in text.split(JOINED) for line in wrap(part, NARROW, break_long_words=False)]
    if len(lines) < 2:
        return latex_text(text)
    stacked = r" \\ ".join(map(latex_text, lines))
    return f"\\begin{{tabular}}[b]{{@{{}}r@{{}}}}{stacked}\\end{{tabular}}"


def _latex_line(texts: Iterable[str]) -> str:
    return " & ".join(texts) + r" \\"


def _latex_entry(entry: Entry) -> str:
    text = latex_text(entry.text)
    if entry.missing:
        return f"\\textit{{{text}}}"
    mark = r"$^{\approx}$" if entry.tied else r"$^{\equiv}$" if entry.twin else ""
    return f"\\textbf{{{text}}}" if entry.best else text + mark
