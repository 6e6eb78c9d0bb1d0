"""What a store of runs comes to, however it came about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def contents(store: Path) -> dict[str, Any]:
    """Everything of a store that must not depend on how it came about."""
    return {folder.name: _content(folder) for folder in sorted(store.iterdir()) if not folder.name.startswith(".")}


def _content(folder: Path) -> dict[str, Any]:
    def untimed(row: dict[str, Any]) -> dict[str, Any]:
        timed = ("time/", "files", "checksum")  # the hashes are of files with times in them
        return {key: value for key, value in row.items() if not key.startswith(timed)}

    return {
        "summary": untimed(json.loads((folder / "summary.json").read_text())),
        "metrics": [untimed(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()],
        "weights": (folder / "weights.safetensors").read_bytes(),
        "files": sorted(path.name for path in folder.iterdir()),
    }


def rows_in(store: Path) -> int:
    """How far the runs of a store have come."""
    return sum(path.read_bytes().count(b"\n") for path in store.glob("*/metrics.jsonl"))
