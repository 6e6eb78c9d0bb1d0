"""The tutorial on one's own data runs from top to bottom, and is kept without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "your_own_federation.ipynb"


def test_it_is_kept_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.slow
def test_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FNLL_NOTEBOOK", str(tmp_path))
    monkeypatch.setenv("FNLL_NOTEBOOK_SAMPLES", "240")
    monkeypatch.setenv("FNLL_NOTEBOOK_ROUNDS", "6")
    monkeypatch.setenv("FNLL_NOTEBOOK_MINUTES", "3")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = str([output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs])
    assert "west" in shown
    assert "of the first" in shown
    assert {"audit.html", "clients.csv", "samples.csv", "plan.json"} <= {p.name for p in (tmp_path / "audit").iterdir()}
    assert (tmp_path / "corrected" / "samples.csv").exists()
