"""What a report takes from files of strangers, and the types it must have; anything else in them is left alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fnll.harness.integrity import DIAGNOSTICS
from fnll.system.foreign import ForeignError

Count = Annotated[int, Field(ge=0, lt=1 << 53, strict=True)]
Number = Annotated[float, Field(strict=True)]
Level = Number | None
LONGEST = 10_000  # letters of a text that goes into a page
Text = Annotated[str, Field(max_length=LONGEST)]


class _Claims(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Settings(_Claims):
    """config.yaml"""

    model_config = ConfigDict(extra="allow", title="config.yaml")

    seed: Count | None = None
    rounds: Count | None = None
    num_clients: Count | None = None
    protocol: Text | None = None


class Facts(_Claims):
    """manifest.json"""

    model_config = ConfigDict(extra="allow", title="manifest.json")

    format: Count = 1
    numbers: Count | None = None
    num_clients: Count | None = None
    nominal: list[Level] | None = None
    realised: list[Level] | None = None
    privileges: list[Text] | None = None
    code: dict[str, Text] | None = None
    versions: dict[str, Text | None] | None = None
    host: dict[str, Text | int | float | None] | None = None
    shares: dict[str, Text] | None = None
    command: Text | None = None
    commit: Text | None = None
    started: Text | None = None
    paper: Text | None = None
    origin: Text | None = None
    fingerprint: Text | None = None
    truth: Text | None = None
    dataset: Text | None = None
    samples: Count | None = None
    names: dict[str, Text] | None = None


class Score(_Claims):
    """One metric in a summary."""

    best: Level = None
    last: Level = None
    last10: Level = None


class Sums(_Claims):
    """summary.json"""

    model_config = ConfigDict(extra="allow", title="summary.json")

    seed: Count | None = None
    diverged: bool = False
    diverged_at: Count | None = None
    exact: bool = True
    origin: Text | None = None
    fingerprint: Text | None = None
    accuracy: Score | None = Field(None, alias="test/accuracy")
    balanced: Score | None = Field(None, alias="test/balanced_accuracy")
    loss: Score | None = Field(None, alias="test/loss")
    seconds: Level = Field(None, alias="time/total_s")


PLACES = ("round", "step", "t")  # keys of a row that say where it is


def require_row(row: Any, file: str, line: int) -> None:
    """Refuse a line of records that is not what a run writes: numbers under metrics, words under the rest."""
    if not isinstance(row, dict):
        raise ForeignError(f"{file}, line {line}, is no JSON object")
    for key, value in row.items():
        if key in PLACES and not (type(value) is int and 0 <= value < 1 << 53):
            raise ForeignError(f"{file}, line {line}: {key} is no count")
        if file == DIAGNOSTICS:
            if key == "value":
                _require_plain(value, file, line)
            elif key in ("name", "stage") and not isinstance(value, str):
                raise ForeignError(f"{file}, line {line}: {key} is no word")
        elif "/" in key and not (value is None or _is_number(value)):
            raise ForeignError(f"{file}, line {line}: {key} is no number")
        elif key == "stage" and not isinstance(value, str):
            raise ForeignError(f"{file}, line {line}: {key} is no word")
    if file == DIAGNOSTICS and not {"name", "value"} <= row.keys():
        raise ForeignError(f"{file}, line {line}, has no name and value")


def _require_plain(value: Any, file: str, line: int) -> None:
    """Numbers no larger than a float's, however nested."""
    stack: list[Any] = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            stack.extend(part.values())
        elif isinstance(part, Sequence) and not isinstance(part, str):
            stack.extend(part)
        elif isinstance(part, int) and not _is_number(part) and not isinstance(part, bool):
            raise ForeignError(f"{file}, line {line}: a number is too large")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return not math.isnan(float(value)) or isinstance(value, float)
    except OverflowError:
        return False
