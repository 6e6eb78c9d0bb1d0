"""One self-contained page: styles, script, data and figures inside; nothing is fetched, and the page forbids it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from fnll.report.analysis import Analysis
from fnll.report.common import caption, in_words
from fnll.report.footnotes import caveats, context, noise_note
from fnll.report.gallery import telling_cell
from fnll.report.payload import payload
from fnll.report.render import to_html
from fnll.report.store import Store
from fnll.report.table import Table
from fnll.report.words import counted


@dataclass(frozen=True)
class Picture:
    """A figure as the page shows it."""

    name: str
    caption: str
    svg: bytes
    width: int  # pixels, so that a page keeps the place of a figure that it has not drawn yet
    height: int
    wide: bool  # many panels: worth the whole width of the page

    @property
    def uri(self) -> str:
        """An image of its own, so that ids and styles of one figure cannot meet those of another."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg).decode()


def page(analysis: Analysis, headline: Table, tables: Sequence[Table], pictures: Sequence[Picture]) -> str:
    """The report as HTML."""
    environment = Environment(
        loader=PackageLoader("fnll.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _template("report.js")
    return environment.get_template("report.html").render(
        title=f"fnll report: {analysis.store.title}",
        store=analysis.store,
        analysis=analysis,
        counts=_counts(analysis.store),
        headline=to_html(headline),
        caption=caption(analysis.store),
        settings=list(in_words(analysis.store)),
        counted=counted,
        caveats=caveats(analysis),
        notes=(*context(analysis), *noise_note(analysis.store)),
        tables={table.name: to_html(table, alone=False) for table in tables},
        names=[table.name for table in tables],
        published=[table.name for table in tables if table.name.startswith(("published_", "reference_curves"))],
        pictures=pictures,
        origins=provenance(analysis.store),
        style=Markup(_template("report.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=htmlsafe_json_dumps(payload(analysis, telling_cell(analysis.store)), dumps=_compact),
    )


def provenance(store: Store) -> list[dict[str, Any]]:
    """The code and machines the runs came from, most runs first: commit, versions, host, runs."""
    found: Counter[str] = Counter()
    for text in store.runs["manifest"]:
        manifest = json.loads(text)
        found[json.dumps([manifest.get("commit"), manifest.get("versions"), manifest.get("host")], sort_keys=True)] += 1
    rows = []
    for text, runs in found.most_common():
        commit, versions, host = json.loads(text)
        rows.append({"commit": commit or "unknown", "versions": _pairs(versions), "host": _pairs(host), "runs": runs})
    return rows


def _pairs(values: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{key} {value}" for key, value in (values or {}).items()) or "–"


def _counts(store: Store) -> list[tuple[str, int]]:
    counts = store.runs["status"].value_counts()
    return [(str(status), int(number)) for status, number in counts.items() if number]


def _template(name: str) -> str:
    return files("fnll.report").joinpath("templates", name).read_text(encoding="utf-8")


def _compact(value: object, **options: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
