"""`fnll report`: what it writes, prints and refuses."""

import argparse
import json
import re

import pytest

from fnll.cli.report import add_arguments
from fnll.errors import UserError
from fnll.report import analyse, load, main_table
from fnll.report.bands import SharedArrays, curves, shown
from fnll.report.command import main, parse_targets
from fnll.report.html import Picture, page, provenance
from fnll.report.payload import payload
from fnll.report.table import Table
from fnll.testing.example import write_store
from fnll.testing.store import write_run


def arguments(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("grid") / "runs"
    return write_store(
        root, methods=["fedavg", "fedcorr", "oracle"], cells=((0.4, 0.0), (0.6, 0.5)), seeds=3, rounds=12
    )


def test_a_report_is_tables_frames_and_a_page(runs, tmp_path, capsys):
    out = tmp_path / "report"
    assert main(arguments(runs, "--out", out, "--no-figures", "--targets", "0.5")) == 0
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    tables = [f"tables/main_last10.{suffix}" for suffix in ("md", "tex", "csv", "html")]
    assert {"report.html", "report.md", "tables.tex", "frames/runs.csv", "frames/metrics.csv", *tables} <= written
    assert {"tables/difference.md", "tables/recovered.md", "tables/cost_50.md"} <= written
    printed = capsys.readouterr().out
    assert "Test accuracy (%), mean of the last 10 evaluations" in printed
    assert "18 runs finished" in printed
    assert str(out / "report.html") in printed


def test_figures_are_written_as_vector_and_png(runs, tmp_path):
    few = tmp_path / "few"
    write_run(few, "fedavg", [0.1, 0.2])
    main(arguments(few, "--out", tmp_path / "out"))
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert {"curves_step.svg", "curves_step.png"} <= names
    assert "data:image/svg+xml;base64," in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--reference", "fedcor"], "did you mean fedcorr"),
        (["--metric", "test/acc"], "test/accuracy"),
        (["--targets", "80"], r"0\.8,0\.9"),
        (["--targets", "high"], r"0\.8,0\.9"),
        (["--select", "best_val"], "not possible"),
    ],
)
def test_mistakes_are_explained(runs, tmp_path, words, message):
    with pytest.raises(UserError, match=message):
        main(arguments(runs, "--out", tmp_path, *words))


def test_a_pipe_gets_whole_numbers(tmp_path, capsys):
    cells = [(rho, tau) for rho in (0.2, 0.4, 0.6, 0.8) for tau in (0.0, 0.5)]  # wider than any terminal's default
    write_store(tmp_path / "runs", methods=["fedavg", "fedprox"], cells=cells, seeds=2, rounds=10)
    assert main(arguments(tmp_path / "runs", "--out", tmp_path / "out", "--no-figures")) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    row = next(line for line in printed.splitlines() if line.strip().startswith("fedavg"))
    assert len(re.findall(r"\d+\.\d\d ± \d+\.\d\d", row)) == len(cells)


def test_missing_and_empty_directories_are_mistakes(tmp_path):
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="runs"):
            main(arguments(place, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_unwritable_place_is_a_mistake(runs, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="--out"):
        main(arguments(runs, "--out", tmp_path / "file" / "below"))


def test_targets():
    assert parse_targets("0.8, 0.9") == (0.8, 0.9)
    assert parse_targets("") == ()


# --- the page's data --------------------------------------------------------------------------------------------------


def test_numbers_are_as_tables_print_them_and_never_nan():
    halves = (0.99125, 0.98375, 0.991251, 0.1, float("nan"), float("inf"))
    assert [shown(v, "test/accuracy") for v in halves] == [99.12, 98.38, 99.13, 10, None, None]
    assert [shown(v, "test/loss") for v in (2.30258509, 12345.6)] == [2.303, 12350]
    assert shown(1234567.0, "comm/client_updates") == 1234570


def test_equal_arrays_are_stored_once():
    shared = SharedArrays()
    found = [shared.add(values, "test/accuracy") for values in ([0.1, 0.2], [0.3], [0.1, 0.2])]
    assert found == [0, 1, 0]


def test_bands_are_means_at_evaluations_within_their_scale(tmp_path):
    for seed, values in enumerate(([0.5, 0.9], [0.7, 1.0])):
        write_run(tmp_path, "fedavg", values, seed=seed)
    store = load(tmp_path)
    data = curves(store, ["test/accuracy"], ["fedavg"])
    xs, mean, low, high = data["bands"]["0,0"]["test/accuracy"]
    assert data["arrays"][xs[0]] == [1, 2]
    assert data["arrays"][mean] == [60, 95]
    assert data["arrays"][low] == [45.86, 87.93]  # standard deviations 14.14 and 7.07
    assert data["arrays"][high] == [74.14, 100]  # not 102.07
    assert [data["arrays"][run["test/accuracy"][1]] for run in data["curves"]] == [[50, 90], [70, 100]]


def test_the_payload_is_json_and_agrees_with_the_statistics(runs):
    analysis = analyse(load(runs))
    data = json.loads(json.dumps(payload(analysis, "ρ=0.6 τ=0.5"), allow_nan=False))
    assert data["start"] == {"metric": "test/accuracy", "rule": "last10", "cell": 1}
    assert [method["name"] for method in data["methods"]] == ["fedavg", "fedcorr", "oracle"]
    grid = data["grid"]["test/accuracy|last10"]
    cell = analysis.cells.set_index(["method", "cell"]).loc[("fedcorr", "ρ=0.6 τ=0.5")]
    text, marks, value = grid["entries"]["mean"][1 * 2 + 1]  # row 1, column 1 of 2
    assert (value, marks) == (cell["mean"], "best")
    rows = {row.label: row for row in main_table(analysis).rows}
    assert text == rows["fedcorr"].entries[1].text == f"{100 * cell['mean']:.2f} ± {100 * cell['std']:.2f}"
    assert grid["entries"]["gain"][1] == ["reference", "missing", None]
    assert grid["captions"]["mean"] == main_table(analysis).title
    assert ["rank", "best of its column"] in grid["facts"][3]
    assert len(data["curves"]) == len(data["runs"]["id"]) == 18


def test_a_thousand_runs_stay_small(tmp_path):
    # Sixty curves stand for a thousand: the bound is per run.
    write_store(tmp_path, methods=["fedavg", "fedcorr"], cells=((0.6, 0.5),), seeds=5, rounds=500)
    store = load(tmp_path)
    size = len(json.dumps(payload(analyse(store), store.cell_labels[0]), separators=(",", ":")))
    assert size / len(store.runs) < 15_000


def test_values_from_configs_cannot_leave_their_place(tmp_path):
    nasty = "</script><script>alert(1)</script>"
    write_run(tmp_path, "fedavg", [0.1], choices={"dataset": nasty}, manifest={"commit": nasty, "privileges": [nasty]})
    write_run(tmp_path, "fedprox", [0.1], ending="failed", note=nasty, choices={"dataset": nasty})
    html = page(analyse(load(tmp_path)), Table("t", nasty, ("m",), ()), [], [])
    assert "<script>alert" not in html
    assert html.count("<script") == 2
    assert html.count("</script>") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1]
    assert nasty in json.loads(data)["cells"][0]["dataset"]


def test_a_figure_keeps_its_place_until_it_is_drawn(runs):
    picture = Picture("curves", "Curves", b"<svg/>", 960, 480, wide=True)
    html = page(analyse(load(runs)), Table("t", "t", ("m",), ()), [], [picture])
    assert re.search(r'<img [^>]*width="960" height="480"', html)


def test_the_page_forbids_every_request(runs):
    html = page(analyse(load(runs)), Table("t", "t", ("m",), ()), [], [])
    assert "default-src 'none'" in html
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)


def test_provenance_counts_runs_by_code_and_machine(tmp_path):
    for seed, commit in enumerate(("abc", "abc", "def")):
        write_run(tmp_path, "fedavg", [0.1], seed=seed, manifest={"commit": commit})
    assert [(row["commit"], row["runs"]) for row in provenance(load(tmp_path))] == [("abc", 2), ("def", 1)]
