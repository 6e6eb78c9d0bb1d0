"""One run folder, read as it is: nothing here knows about tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fnll.harness.integrity import CONFIG, FORMAT, MANIFEST, METRICS, Condition, examine, format_of, in_words
from fnll.harness.run_folder import in_new_words
from fnll.harness.status import MARKS, SUMMARY, Status, mark_in, status_in, warnings_in
from fnll.report.claims import Facts, Settings, Sums, require_row
from fnll.system.foreign import ForeignError, json_object, json_of, text, yaml_mapping

Config = Mapping[str, Any]


@dataclass(frozen=True)
class StoredRun:
    """The files of one run folder; what is missing is empty."""

    path: Path
    status: Status
    reason: str = ""  # why there is no number, for every status but `finished`
    command: str = ""  # how to repeat it
    config: Config = field(default_factory=dict)  # dotted key → scalar, see `flatten`
    choices: Mapping[str, str] = field(default_factory=dict)  # config group → chosen name
    manifest: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()  # the lines of metrics.jsonl
    verified: bool = True  # whether its files could be compared with hashes of what it wrote
    warnings: tuple[Mapping[str, str], ...] = ()  # what it warned of

    @property
    def run_id(self) -> str:
        return self.path.name


def read_run(path: Path) -> StoredRun:
    """The run in `path`. A folder that cannot be read becomes a run of status `unreadable`, never an exception."""
    try:
        return _read(path)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return StoredRun(
            path, Status.UNREADABLE, f"{error.title}: {place}: {first['msg']}, got {str(first['input'])[:60]!r}"
        )
    except (OSError, ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as error:
        return StoredRun(path, Status.UNREADABLE, in_words(error)[:300] or type(error).__name__)


def _read(path: Path) -> StoredRun:
    config = yaml_mapping(path / CONFIG)
    choices = {str(k): str(v) for k, v in (config.pop("choices", None) or {}).items()}
    manifest, summary = _json(path / MANIFEST), _json(path / SUMMARY)
    Settings.model_validate(config)
    Facts.model_validate(manifest)
    Sums.model_validate(summary)
    steps = read_lines(path)
    status, reason = _status(path, summary, len(steps), config)
    if status is Status.UNFINISHED and manifest and (found := format_of(manifest)) != FORMAT:
        reason += f"; it cannot be resumed here (its folder has format {found}, not {FORMAT})"
    command = str(manifest.get("command") or _json(path / MARKS[Status.FAILED]).get("command") or "")
    finding = examine(path)
    if finding.state is Condition.DAMAGED:
        status, reason = Status.DAMAGED, finding.reason
    verified = finding.state is Condition.INTACT
    files = (flatten(_by_name(config)), choices, manifest, summary, steps)
    return StoredRun(path, status, reason, command, *files, verified, tuple(warnings_in(path)))


def read_lines(path: Path, name: str = METRICS) -> tuple[dict[str, Any], ...]:
    """The JSON lines of one file of a run. A torn last line is left out: the run was killed, or is writing it now."""
    file = path / name
    if not file.exists():
        return ()
    lines = text(file).splitlines()
    return tuple(_rows(lines, name))


def _rows(lines: list[str], name: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            row = json_of(line, f"{name}, line {number},")
        except ForeignError:
            if number == len(lines):
                return
            raise
        require_row(row, name, number)
        yield in_new_words(row)


def flatten(config: Config, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level of dotted keys; lists become tuples, so that every value is hashable."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = _hashable(value)
    return flat


def _by_name(node: Any) -> Any:
    """`node` with classes of ours under their names alone: they move between versions, and the runs are the same."""
    if isinstance(node, list):
        return [_by_name(value) for value in node]
    if not isinstance(node, dict):
        return node
    named = {key: _by_name(value) for key, value in node.items()}
    target = named.get("_target_")
    if isinstance(target, str) and target.startswith("fnll."):
        named["_target_"] = f"fnll.{target.rpartition('.')[2]}"
    return named


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(v) for v in value)
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else value


def _json(file: Path) -> dict[str, Any]:
    return json_object(file) if file.exists() else {}


def _status(path: Path, summary: Mapping[str, Any], steps: int, config: Config) -> tuple[Status, str]:
    """Status, and the reason why there is no number."""
    status = status_in(path)
    if status is Status.FINISHED:
        if not summary.get("diverged"):
            return status, ""
        at = summary.get("diverged_at")  # older runs did not say
        return Status.DIVERGED, f"diverged after {steps} evaluations" if at is None else f"diverged at step {at}"
    if mark := mark_in(path):
        told = _json(mark[1])
        return status, str(told.get("reason") or told.get("error") or "no reason given")
    return status, f"at evaluation {steps} of {config.get('rounds', '?')} rounds"
