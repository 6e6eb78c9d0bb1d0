"""The notebook runs from top to bottom on a store, and is kept without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from fnll.testing.example import write_store

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "results.ipynb"


def test_it_is_kept_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.slow
def test_it_runs_on_a_store(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "FNLL_RUNS", str(write_store(tmp_path / "runs", cells=((0.4, 0.0), (0.6, 0.5)), seeds=3, rounds=12))
    )
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = [kind for output in shown for kind in output.get("data", {})]
    assert kinds.count("image/svg+xml") >= 8
    assert "mean of the last 10 evaluations" in str(shown)
    assert not [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]
