"""The numbers that the papers print, as data: one record per printed value, with the settings that identify its cell.

    from fnll.published import table, tables

    tables()  # ("fedcorr_table2", ..., "fedrn_table5", ..., "fednoro_table4")
    table("fedcorr_table2").records[0]

One YAML file per paper beside this one. A table has `columns` and `rows`, each with the settings that tell it from the
others, and a row's `values` in the order of the columns: `93.11±0.12` is a mean with its spread, `370(2.6)` a cost with
the printed ratio, `-` a value that was not printed. `cell` holds settings of the whole table, `world` those that the
paper fixes but that do not tell its cells apart; a run that differs there is shown with the reason. `{not: [...]}` is
any other value. `errata` are known contradictions, `unpublished` what the paper leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from fnll.errors import UserError, nearest

EXPERIMENT = "paper/"  # experiments of this name run a table or figure as printed
PAPERS = ("fedcorr", "fedrn", "fednoro", "fedfixer")
OF_THE_NUMBER = ("metric", "select", "target")  # what is measured, unlike settings of a run
VALUE = re.compile(r"(?P<value>-?[\d.]+)(±(?P<spread>[\d.]+))?(\((?P<ratio>[\d.]+)\))?")

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """One printed value."""

    table: str
    row: str
    column: str
    value: float | None  # in `unit`; None: printed as "-", or a formula
    spread: float | None  # the printed standard deviation
    trials: int | None  # as the paper says; None: it does not
    unit: str
    metric: str
    select: str  # which number of a run: a rule of the report, target (cost), mixtures, correlation or cost
    settings: Settings  # that identify the cell
    world: Settings  # that the paper fixes beside them
    target: float | None = None  # the accuracy that a cost is measured to
    ratio: float | None = None  # of costs, as printed
    formula: str = ""  # of FedRN's table 10
    mean_of_row: bool = False  # printed for the reader's convenience
    erratum: str = ""
    unpublished: tuple[str, ...] = ()  # choices behind this value that the paper does not tell


@dataclass(frozen=True)
class Printed:
    """A table or figure as printed."""

    name: str
    paper: str
    title: str
    records: tuple[Record, ...] = field(repr=False)

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(record.row for record in self.records))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(record.column for record in self.records))


def tables() -> tuple[str, ...]:
    """The names of all tables and figures with published numbers."""
    return tuple(_all())


def table(name: str) -> Printed:
    """A table or figure by its name."""
    known = _all()
    if name not in known:
        raise UserError(f"there are no published numbers of {name!r}; {nearest(name, list(known))}")
    return known[name]


def matches(settings: Settings, run: Settings) -> bool:
    """Whether a run, given by its choices and dotted settings, has the settings of a record.

    Official variants (`fedcorr_official`, `iid_official`) are the thing they are variants of, and a run without noise
    is one with ρ = 0.
    """
    clean = run.get("noise") == "none"
    return all(
        _agrees(wanted, 0.0 if clean and key == "noise.rho" else run.get(key))
        for key, wanted in settings.items()
        if not (clean and settings.get("noise.rho") == 0 and key.startswith("noise") and key != "noise.rho")
    )


def differences(world: Settings, run: Settings) -> dict[str, tuple[Any, Any]]:
    """Where a run departs from what the paper fixes: setting → (the run's, the paper's)."""
    return {key: (run.get(key), fixed) for key, fixed in world.items() if not _agrees(fixed, run.get(key))}


def _agrees(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Mapping):
        return not any(_agrees(other, found) for other in wanted["not"])
    if isinstance(wanted, str) and isinstance(found, str):
        return wanted.removesuffix("_official") == found.removesuffix("_official")
    if isinstance(wanted, list):
        return isinstance(found, list | tuple) and list(found) == wanted
    return bool(wanted == found) and isinstance(wanted, bool) == isinstance(found, bool)


@cache
def _all() -> dict[str, Printed]:
    return {printed.name: printed for paper in PAPERS for printed in _read(paper)}


def _read(paper: str) -> Iterator[Printed]:
    content = yaml.safe_load(files("fnll.published").joinpath(f"{paper}.yaml").read_text(encoding="utf-8"))
    for name, printed in content.items():
        if name not in ("paper", "common"):
            records = tuple(_records(f"{paper}_{name}", printed))
            yield Printed(f"{paper}_{name}", content["paper"], printed["title"], records)


def _records(name: str, printed: Mapping[str, Any]) -> Iterator[Record]:
    for row, told in printed["rows"].items():
        values = told["values"]
        for select, line in ({printed["select"]: values} if isinstance(values, str) else values).items():
            words = line.split()
            if len(words) != len(printed["columns"]):
                raise ValueError(f"{name}, {row}: {len(words)} values for {len(printed['columns'])} columns")
            for (column, of_column), word in zip(printed["columns"].items(), words, strict=True):
                of_row = {key: value for key, value in told.items() if key != "values"}
                merged = {**printed["cell"], **of_row, **of_column}
                yield _record(name, printed, row, column, merged, select, word)


def _record(
    name: str, printed: Mapping[str, Any], row: str, column: str, merged: dict[str, Any], select: str, word: str
) -> Record:
    number = {key: merged.pop(key, printed.get(key)) for key in OF_THE_NUMBER} | {"select": select}
    mean_of_row = merged.pop("mean_of_row", False)
    world = {**printed["world"], **merged.pop("world", {})}
    found = VALUE.fullmatch(word)
    part = {key: None if value is None else float(value) for key, value in (found.groupdict() if found else {}).items()}
    return Record(
        name,
        row,
        column,
        part.get("value"),
        part.get("spread"),
        printed["trials"],
        printed["unit"],
        number["metric"],
        number["select"],
        merged,
        {key: value for key, value in world.items() if key not in merged},
        number["target"],
        part.get("ratio"),
        "" if found or word == "-" else word,
        mean_of_row,
        "; ".join(e["note"] for e in printed.get("errata", ()) if _concerns(e, row=row, column=column)),
        tuple(u["what"] for u in printed.get("unpublished", ()) if _concerns(u, **merged)),
    )


def _concerns(told: Mapping[str, Any], **place: Any) -> bool:
    """Whether a remark is about this place: every key that it names agrees."""
    return all(place.get(key) == value for key, value in told.items() if key not in ("note", "what"))
