"""The section "In the box" of README.md, made from the configs, so that it cannot go stale.

python experiments/in_the_box.py          # writes it
python experiments/in_the_box.py --check  # says whether it is up to date; a test does the same
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from fnll.harness.catalogue import Described, bibliography, described
from fnll.harness.choices import options

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- in the box: made by experiments/in_the_box.py -->", "<!-- in the box: end -->"
VARIANT = ("_official", "_gradient", "_plus")


def section() -> str:
    """The section between its two marks."""
    methods = [described(name) for name in options("method")]
    bounds = [row for row in methods if row.choice.startswith("oracle")]
    own = [row for row in methods if row not in bounds and not row.choice.endswith(VARIANT)]
    variants = [row for row in methods if row.choice.endswith(VARIANT)]
    lines = [
        f"- **{len(own)} methods**: {_papers(own)}; {len(variants)} variants of them, such as the released codes where "
        f"these differ from the papers (`fnll methods --all`); {_choices(row.choice for row in bounds)} as bounds.",
        f"- **{_all('dataset', 'data sets')} ([what they need](docs/data.md)).",
        _kinds("noise model", "noise"),
        _kinds("partition", "partition"),
        f"- **{_all('model', 'networks')}, with or without pretrained weights.",
        f"- **{_all('executor', 'executors')}; sweeps on this machine, SLURM or Ray.",
        f"- **Loggers**: {_choices(set(options('logger')) - {'none'})}; none is needed.",
    ]
    return "\n".join(lines)


def _papers(rows: Iterable[Described]) -> str:
    known = bibliography()
    links = [(row.name, re.search(r"url = \{(.*?)\}", known[row.cite[0]])) for row in rows]
    return ", ".join(f"[{name}]({url[1]})" if url else name for name, url in links)


def _kinds(what: str, group: str) -> str:
    names = [name for name in options(group) if not name.endswith("_official")]
    official = len(options(group)) - len(names)
    return f"- **{len(names)} {what}s**: {_choices(names)}, and {official} with the draws of released codes."


def _all(group: str, what: str) -> str:
    return f"{len(options(group))} {what}**: {_choices(options(group))}"


def _choices(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def replaced(text: str) -> str:
    """`text` with the section as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section()}\n{END}{after}"


def main() -> None:
    """Write the section, or with `--check` say whether it is as it should be."""
    text = README.read_text()
    if "--check" in sys.argv:
        sys.exit(0 if replaced(text) == text else f"{README.name} is out of date: python experiments/in_the_box.py")
    README.write_text(replaced(text))  # a script of this repository, and its own file


if __name__ == "__main__":
    main()
