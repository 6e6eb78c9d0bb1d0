"""Clients with names in reports: the table, and names under the figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
from matplotlib.figure import Figure

from fnll.harness.status import Status
from fnll.plotting.names import shown, ticks
from fnll.report.figures.clients import noise_levels
from fnll.report.gallery import PER_CLIENT, _clients
from fnll.report.own_clients import clients_table
from fnll.report.render import to_csv, to_html

EVIL = "=<b>$x$"


def store(tmp_path: Path) -> SimpleNamespace:
    """Two runs of one method and one of another, on two clients; a third run has nobody by name."""
    rows = []
    for i, (method, level) in enumerate([("fedavg", 0.1), ("fedavg", 0.3), ("fedrn", 0.5), ("fedrn", None)]):
        folder = tmp_path / str(i)
        folder.mkdir()
        if level is not None:
            frame = pd.DataFrame({"client": [f"'{EVIL}", "south"], "size": [5, 7], "noise_level": [level, ""]})
            frame.assign(noisy=[level > 0.2, False], evidence="").to_csv(folder / "clients.csv", index=False)
        facts = {"run_id": str(i), "method": method, "cell": "c", "status": Status.FINISHED, "path": str(folder)}
        levels = {"nominal": (float("nan"),) * 2, "realised": (0.25, 0.0), "client_names": (EVIL, "south")}
        rows.append({**facts, **levels})
    return SimpleNamespace(runs=pd.DataFrame(rows), methods=["fedavg", "fedrn"], name=lambda method: method.upper())


def test_clients_by_name_and_method(tmp_path):
    table = clients_table(store(tmp_path))
    assert table.columns == ("client", "samples", "FEDAVG", "FEDRN")
    assert [row.label for row in table.rows] == [EVIL, "south"]
    assert [entry.text for entry in table.rows[0].entries] == ["5", "20% (50% noisy)", "50% (100% noisy)"]
    assert [entry.text for entry in table.rows[1].entries] == ["7", "–", "–"]
    assert "<b>" not in to_html(table)
    assert f"'{EVIL}" in to_csv(table), "no spreadsheet takes it for a formula"


def test_there_is_no_table_without_names(tmp_path):
    runs = store(tmp_path).runs.iloc[3:]
    assert clients_table(SimpleNamespace(runs=runs, methods=["fedrn"], name=str)) is None


def test_a_damaged_file_is_left_out(tmp_path):
    found = store(tmp_path)
    (tmp_path / "2" / "clients.csv").write_text("nonsense")
    assert clients_table(found).columns == ("client", "samples", "FEDAVG")


def test_names_stand_under_the_axis(tmp_path):
    figure = noise_levels(store(tmp_path), "0")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == [shown(EVIL), "south"]
    figure.canvas.draw()  # a sign that matplotlib takes for a formula would raise here


def test_long_names_are_cut_and_many_are_not_written():
    assert shown("a" * 40) == "a" * 15 + "…"
    ax = Figure().subplots()
    before = len(ax.get_xticks())
    ticks(ax, ["x"] * 31)
    assert len(ax.get_xticks()) == before


def test_figures_against_the_truth_wait_for_one(tmp_path, monkeypatch):
    """FedRN on data of unknown truth: its `accuracy` was drawn against unknown levels, and there was no report."""
    drawn = []
    for name in ("expertise", "similarity"):
        needs, caption, _ = PER_CLIENT[name]
        monkeypatch.setitem(PER_CLIENT, name, (needs, caption, lambda *_, name=name: drawn.append(name)))
    runs = pd.DataFrame({"run_id": ["a"], "method": ["fedrn"], "cell": ["c"], "seed": [0], "status": [Status.FINISHED],
                         "kind": ["method"], "realised": [(float("nan"),) * 3]})  # fmt: skip
    store = SimpleNamespace(runs=runs, name=str, cell_labels=["c"],
                            facts=lambda run, name: [{}] * (name in ("accuracy", "similarity")))  # fmt: skip
    list(_clients(SimpleNamespace(store=store)))
    assert drawn == ["similarity"]
