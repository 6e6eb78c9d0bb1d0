"""The registry of metrics: what readers of it rely on, and the page that documents it."""

import subprocess
import sys
from pathlib import Path

import pytest

from fnll.cli.dashboard import PANELS
from fnll.harness.metrics import METRICS, NOT_METRICS, SCORES, Unit, group_of, metric_of, recorded, require_registered
from fnll.report.footnotes import metric_label

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_tells_every_recorded_key_with_its_unit_and_direction():
    told = {}
    for line in PAGE.read_text().partition("`summary.json`")[0].splitlines():
        if line.startswith("| `"):
            key, unit, better, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            told[key.strip("`")] = (unit, better)
            assert meaning
    expected = dict.fromkeys(NOT_METRICS, ("", ""))
    expected |= {m.key: (m.unit.value, "higher" if m.higher else "lower") for m in METRICS.values() if m.recorded}
    assert told == expected


def test_every_recorded_key_has_a_panel_of_the_dashboard():
    shown = [key for panels in PANELS.values() for key in panels.values()]
    assert sorted(shown) == sorted(key for key, metric in METRICS.items() if metric.recorded)


def test_a_key_without_an_entry_is_refused_where_it_is_recorded():
    require_registered(["step", "stage", *SCORES])
    with pytest.raises(LookupError, match=r"^labels/new: no entry in fnll\.harness\.metrics"):
        require_registered(["test/accuracy", "labels/new"])
    with pytest.raises(LookupError, match="comm/bytes"):  # the report makes it, no run records it
        require_registered(["comm/bytes"])


def test_a_key_of_another_version_is_read_by_its_group():
    """Stores outlive versions: what is not listed is still drawn, in per cent if its group is."""
    assert metric_of("detect/other").words == "detect/other"
    assert metric_of("detect/other").is_fraction
    assert group_of("detect/other").diagnostic
    assert not metric_of("time/other").higher
    assert metric_of("mine/accuracy").unit is Unit.SHARE
    assert metric_of("mine/size").unit is Unit.NUMBER


def test_groups_keep_the_order_of_the_tables():
    assert SCORES == ("test/accuracy", "test/balanced_accuracy", "test/loss")
    spent = [metric_of(key).heading for key in recorded("comm")]
    assert spent == ["client updates", "contacts", "MB up", "MB down"]
    assert [metric_of(key).heading for key in recorded("detect")] == ["Re (%)", "Pr (%)", "F1 (%)", "MR (%)"]


def test_labels_carry_unit_and_direction():
    assert metric_label("test/accuracy") == "Test accuracy (%)"
    assert metric_label("labels/noise") == "Share of wrong labels (%), lower is better"
    assert metric_label("levels/error") == "Error of estimated noise levels, lower is better"


def test_the_registry_is_read_without_torch():
    """By itself, apart from what the package imports on the way to it."""
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('metrics', sys.argv[1]); "
        "module = sys.modules['metrics'] = importlib.util.module_from_spec(spec); spec.loader.exec_module(module); "
        "assert module.METRICS and 'torch' not in sys.modules"
    )
    file = sys.modules[require_registered.__module__].__file__
    subprocess.run([sys.executable, "-c", code, str(file)], check=True)
