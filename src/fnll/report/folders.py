"""One run folder, read as it is: nothing here knows about tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fnll.records import METRICS

Config = Mapping[str, Any]

FINISHED = "finished"
DIVERGED = "diverged"
FAILED = "failed"
SKIPPED = "skipped"
UNFINISHED = "unfinished"
UNREADABLE = "unreadable"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C: ten times faster on a thousand configs
STATUSES = (FINISHED, DIVERGED, FAILED, SKIPPED, UNFINISHED, UNREADABLE)


@dataclass(frozen=True)
class Run:
    """The files of one run folder; what is missing is empty."""

    path: Path
    status: str
    reason: str = ""  # why there is no number, for every status but `finished`
    command: str = ""  # how to repeat it
    config: Config = field(default_factory=dict)  # dotted key → scalar, see `flatten`
    choices: Mapping[str, str] = field(default_factory=dict)  # config group → chosen name
    manifest: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()  # the lines of metrics.jsonl

    @property
    def run_id(self) -> str:
        return self.path.name


def read_run(path: Path) -> Run:
    """The run in `path`. A folder that cannot be read becomes a run of status `unreadable`, never an exception."""
    try:
        config = dict(yaml.load((path / "config.yaml").read_text(), Loader=LOADER))
        choices = {str(k): str(v) for k, v in (config.pop("choices", None) or {}).items()}
        manifest, summary, steps = _json(path / "manifest.json"), _json(path / "summary.json"), read_lines(path)
        status, reason = _status(path, summary, len(steps), config)
        command = str(manifest.get("command") or _json(path / "failed.json").get("command") or "")
        return Run(path, status, reason, command, flatten(config), choices, manifest, summary, steps)
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        return Run(path, UNREADABLE, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


def read_lines(path: Path, name: str = METRICS) -> tuple[dict[str, Any], ...]:
    """The JSON lines of one file of a run. A torn last line is left out: the run was killed, or is writing it now."""
    file = path / name
    if not file.exists():
        return ()
    lines = file.read_text().splitlines()
    try:
        last = [json.loads(lines[-1])] if lines else []
    except ValueError:
        last = []
    return (*(json.loads(line) for line in lines[:-1]), *last)


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


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(v) for v in value)
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else value


def _json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _status(path: Path, summary: Mapping[str, Any], steps: int, config: Config) -> tuple[str, str]:
    """Status and reason; a summary is written last, so it outweighs the marks of earlier attempts."""
    if summary.get("finished"):
        diverged = bool(summary.get("diverged"))
        return (DIVERGED, f"diverged after {steps} evaluations") if diverged else (FINISHED, "")
    if skipped := _json(path / "skipped.json"):
        return SKIPPED, str(skipped.get("reason", "no reason given"))
    if failed := _json(path / "failed.json"):
        return FAILED, str(failed.get("error", "no error recorded"))
    return UNFINISHED, f"at evaluation {steps} of {config.get('rounds', '?')} rounds"
