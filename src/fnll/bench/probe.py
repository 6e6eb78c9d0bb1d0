"""One run in a process of its own, which says how much memory and disk it took: `python -m fnll.bench.probe WORDS`."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fnll.bench.subjects import run_of
from fnll.harness.checkpoint import Checkpoints
from fnll.harness.execute import execute
from fnll.system.files import temporary_folder
from fnll.weights import nbytes


def probe(words: Sequence[str]) -> dict[str, int]:
    """Do the run; return its peak memory, and the sizes of what it remembers in the end."""
    with temporary_folder() as runs_dir:
        run = run_of((*words, f"runs_dir={runs_dir}"))
        execute(run)
        peak = peak_memory()
        folder = runs_dir / run.run_id / "checkpoint"
        restored = Checkpoints(folder, run.run_id).load()
        assert restored is not None
        state = restored.snapshot.state
        return {
            "peak_bytes": peak,
            "checkpoint_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
            "state_bytes": distinct_bytes((state, restored.snapshot.clients)),
            "model_bytes": nbytes(state.weights),
            "models_stored": len(getattr(state, "locals", {})),
        }


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes.

    From /proc where there is one: what getrusage reports starts from the size of the parent that started us.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def distinct_bytes(value: Any) -> int:
    """Bytes of all tensors in `value`, each memory counted once."""
    return sum({tensor.data_ptr(): nbytes(tensor) for tensor in tensors(value)}.values())


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a tree of containers and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1:])))
