"""Tables: what they say, how they are marked, and that nothing from a config escapes into a format."""

import io
import shutil
import subprocess

import pandas as pd
import pytest
from rich.console import Console

from fnll.report import (
    Entry,
    Row,
    Table,
    all_tables,
    analyse,
    cost_table,
    detection_table,
    difference_table,
    gap_table,
    latex_document,
    load,
    main_table,
    missing_table,
    rank_table,
    resource_table,
    scenario_table,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    to_rich,
)
from fnll.report.latex import latex_text
from fnll.report.payload import payload
from fnll.report.render import as_csv, markdown_text
from fnll.testing.example import write_store
from fnll.testing.store import write_run

NASTY = r"""</script><b>&"'\ # $ % ^ _ { } ~ | * ` [x] é ł 中 ρ ± <!--"""


def grid(table):
    """{(row, column): text}, with the marks that formats draw."""
    return {
        (row.label, column): entry.text + "*" * entry.best + "≈" * entry.tied
        for row in table.rows
        for column, entry in zip(table.columns[1:], row.entries, strict=True)
    }


@pytest.fixture
def store(tmp_path):
    for seed, (low, high) in enumerate([(0.70, 0.80), (0.72, 0.83), (0.74, 0.83)]):
        write_run(tmp_path, "fedavg", [low] * 10, seed=seed, config={"noise.rho": 0.6})
        write_run(tmp_path, "fedcorr", [high] * 10, seed=seed, config={"noise.rho": 0.6})
        write_run(tmp_path, "oracle", [low + 0.2] * 10, seed=seed, config={"noise.rho": 0.6})
    write_run(tmp_path, "fedavg", [0.9] * 10, config={"noise.rho": 0.0})
    broken = {"config": {"noise.rho": 0.0, "rounds": 10}, "note": "RuntimeError: no memory"}
    write_run(tmp_path, "fedcorr", [0.1], ending="failed", **broken)
    return load(tmp_path)


def test_the_main_table_names_its_number_and_marks_the_best(store):
    table = main_table(analyse(store))
    assert table.title == "Test accuracy (%), mean of the last 10 evaluations"
    cells = grid(table)
    assert cells["fedavg", "ρ=0.6"] == "72.00 ± 2.00"
    assert cells["fedcorr", "ρ=0.6"] == "82.00 ± 1.73*"
    assert cells["oracle", "ρ=0.6"] == "92.00 ± 2.00"
    assert cells["fedavg", "ρ=0"] == "90.00"  # of one seed nothing is called best
    assert cells["fedcorr", "ρ=0"] == "failed"
    assert cells["oracle", "ρ=0"] == "not run"
    # 12 of 20 clients between 0.5 and 1, nine tenths real
    assert (table.rows[0].label, cells["label noise", "ρ=0.6"]) == ("label noise", "0.41 (nominal 0.45)")
    assert cells["label noise", "ρ=0"] == "0.00"


def test_best_is_always_called_best_on_test(store):
    table = main_table(analyse(store, rule="best"))
    assert "best on test" in table.title
    assert any("optimistic" in note for note in table.notes)


def test_every_cell_leads_to_its_runs(store):
    table = main_table(analyse(store))
    data = pd.read_csv(io.StringIO(to_csv(table)))
    listed = {run_id for ids in data["run_ids"] for run_id in ids.split()}
    assert listed == set(store.runs["run_id"])
    entry = next(row for row in table.rows if row.label == "fedcorr").entries[1]
    assert all(
        run_id in entry.hint
        for run_id in data.set_index(["method", "cell"]).loc[("fedcorr", "ρ=0.6"), "run_ids"].split()
    )


def test_notes_say_protocol_privileges_and_differing_settings(tmp_path):
    write_run(tmp_path, "fedavg", [0.1], config={"local.lr": 0.03, "protocol": "paper"})
    write_run(tmp_path, "fedrn", [0.2], config={"local.lr": 0.01})
    notes = " ".join(main_table(analyse(load(tmp_path))).notes)
    assert "Protocols differ: paper: fedavg; shared: fedrn." in notes
    assert "Extra information used: fedrn: downloads k further models per round." in notes
    assert "local.lr differs between rows: fedavg 0.03; fedrn 0.01." in notes


def test_a_protocol_that_is_not_quite_the_papers_is_said_though_all_rows_have_it(tmp_path):
    write_run(tmp_path, "fedavg", [0.1], config={"protocol": "paper, but rounds 30 (100)"})
    notes = " ".join(main_table(analyse(load(tmp_path))).notes)
    assert "Protocol of every row: paper, but rounds 30 (100)." in notes


def test_diverged_and_partial_cells_say_so(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "fedavg", [0.5] * 10, seed=seed)
        write_run(tmp_path, "wild", [0.9] * 10, seed=seed, ending="diverged" if seed else "finished")
    write_run(tmp_path, "late", [0.4] * 10, seed=0)
    write_run(tmp_path, "late", [0.4], seed=1, ending="unfinished", config={"rounds": 10})
    cells = grid(main_table(analyse(load(tmp_path))))
    column = "digits · iid · rho_tau"
    assert cells["wild", column] == "2/3 diverged"
    assert cells["late", column] == "40.00 (1/3)"
    assert cells["fedavg", column] == "50.00 ± 0.00*"


def test_differences_carry_intervals_from_three_pairs(store):
    cells = grid(difference_table(analyse(store)))
    # differences 10, 11, 9 points: 10 ± 4.3027 · 1/√3
    assert cells["fedcorr", "ρ=0.6"] == "+10.00 [+7.52, +12.48]"
    assert cells["oracle", "ρ=0.6"] == "+20.00 [+20.00, +20.00]"
    assert cells["fedcorr", "ρ=0"] == "failed"


def test_two_pairs_give_a_difference_without_interval(tmp_path):
    for seed in range(2):
        write_run(tmp_path, "fedavg", [0.5], seed=seed)
        write_run(tmp_path, "fedprox", [0.4], seed=seed)
    assert list(grid(difference_table(analyse(load(tmp_path)))).values()) == ["−10.00 (n=2)"]


def test_the_gap_table(store):
    assert grid(gap_table(analyse(store)))["fedcorr", "ρ=0.6"] == "50 %"


def test_a_share_of_the_gap_from_few_seeds_says_so(tmp_path):
    for method, value in {"fedavg": 0.5, "oracle": 0.501, "fedprox": 0.505}.items():
        write_run(tmp_path, method, [value], seed=0)
    assert list(grid(gap_table(analyse(load(tmp_path)))).values()) == ["500 % (n=1)"]


def test_the_page_knows_how_many_seeds_a_share_has(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "fedavg", [0.5], seed=seed)
        write_run(tmp_path, "fedprox", [0.55 + seed / 100], seed=seed)
        if seed < 2:
            write_run(tmp_path, "oracle", [0.6], seed=seed)
    analysis = analyse(load(tmp_path))
    assert list(grid(gap_table(analysis)).values()) == ["55 % (n=2)"]
    data = payload(analysis, analysis.store.cell_labels[0])["grid"]["test/accuracy|last10"]
    assert [text for text, *_ in data["entries"]["share"]] == ["reference", "55 % (n=2)", "–"]
    assert ["share of the recoverable gap", "55 % (n=2)"] in data["facts"][1]


def test_the_cost_table_follows_fedcorrs(tmp_path):
    write_run(tmp_path, "fedavg", [0.5, 0.5, 0.9], seed=0)
    write_run(tmp_path, "fedcorr", [0.9, 0.9, 0.9], seed=0)
    write_run(tmp_path, "fedprox", [0.5, 0.5, 0.5], seed=0)
    cells = grid(cost_table(analyse(load(tmp_path)), 0.8))
    assert [text for (_, _), text in sorted(cells.items())] == ["30 (3.0×)", "10 (1.0×)", "–"]


def test_scenarios_missing_runs_and_resources(store):
    scenarios = grid(scenario_table(store))
    assert scenarios["ρ=0.6", "noise"] == "rho_tau ρ=0.6"
    assert scenarios["ρ=0.6", "seeds"] == "3"
    missing = missing_table(store)
    assert [(row.label, *(e.text for e in row.entries[:4])) for row in missing.rows] == [
        ("fedcorr", "ρ=0", "0", "failed", "RuntimeError: no memory"),
        ("oracle", "ρ=0", "0", "not run", "–"),
    ]
    assert missing.rows[0].entries[4].text == "fnll run method=fedcorr seed=0"
    assert grid(resource_table(analyse(store)))["fedavg", "client updates"] == "100"


def test_detection_is_fednoros_table(tmp_path):
    for seed, exact in ((0, 1.0), (1, 0.0)):
        measured = {
            "detect/recall": [None, 1.0],
            "detect/precision": [None, 0.5 + exact / 2],
            "detect/exact": [0.0, exact],
        }
        write_run(tmp_path, "fednoro", [0.1, 0.2], seed=seed, metrics=measured)
    write_run(tmp_path, "fedavg", [0.1, 0.2])
    table = detection_table(load(tmp_path))
    assert table.columns == ("method", "scenario", "Re (%)", "Pr (%)", "MR (%)", "runs")
    assert [e.text for e in table.rows[0].entries[1:]] == ["100.00", "75.00", "50.00", "2"]
    assert len(table.rows) == 1


def test_ranks_need_six_scenarios(tmp_path):
    write_store(tmp_path, methods=["fedavg", "fedcorr", "fedprox"], seeds=1, rounds=12)
    analysis = analyse(load(tmp_path))
    table = rank_table(analysis)
    assert table.rows[0].label == "fedcorr"
    assert any("7 scenarios" in note for note in table.notes)
    assert any("smallest possible corrected p is 0.0312" in note for note in table.notes)  # 2 comparisons · 2 / 2⁷
    assert {"main_last10", "main_last", "main_best", "difference", "ranks"} <= {t.name for t in all_tables(analysis)}


# --- formats ----------------------------------------------------------------------------------------------------------


def small(label="a", text="1.0"):
    rows = (
        Row(label, (Entry(text, best=True),)),
        Row("b", (Entry("0.9", tied=True),)),
        Row("c", (Entry("–", missing=True),)),
    )
    return Table("small", "A title", ("method", "ρ=0.6 τ=0.5"), rows, ("A note.",), pd.DataFrame({"x": [1]}))


def test_markdown():
    head = "### A title\n\n| method | ρ=0.6 τ=0.5 |\n| --- | ---: |\n"
    assert to_markdown(small()) == head + "| a | **1.0** |\n| b | 0.9 ≈ |\n| c | *–* |\n\n- A note.\n"


def test_latex():
    text = to_latex(small())
    assert r"a & \textbf{1.0} \\" in text
    assert r"b & 0.9$^{\approx}$ \\" in text
    assert r"method & $\rho=0.6$ $\tau=0.5$ \\" in text
    assert r"\label{tab:small}" in text
    assert r"\toprule" in text


def test_html_marks_cells_by_class_and_sign():
    text = str(to_html(small()))
    assert '<td class="best">1.0</td>' in text
    assert '<td class="tied">0.9 <abbr title="tied with the best">≈</abbr></td>' in text


def test_nothing_from_a_config_escapes_into_html_or_markdown():
    hint = Table("t", NASTY, ("m", NASTY), (Row(NASTY, (Entry(NASTY, hint=NASTY),)),), (NASTY,))
    html = str(to_html(hint))
    assert "</script>" not in html
    assert "<b>" not in html
    assert "<!--" not in html
    assert html.count('title="') == 1
    assert markdown_text("a|b*c<d\ne") == r"a\|b\*c&lt;d e"


def test_latex_text_is_plain_where_latex_would_act():
    assert latex_text("50 % of a_b & {c}") == r"50 \% of a\_b \& \{c\}"
    assert latex_text("é ł 中") == r"é \texttt{U+0142} \texttt{U+4E2D}"


def test_a_long_heading_stands_in_lines():
    table = Table("t", "t", ("m", "cifar10 · bernoulli_dirichlet · fraction=0.5 rounds=40", "iid"), ())
    stacked = r"cifar10 \\ bernoulli\_dirichlet \\ fraction=0.5 \\ rounds=40"
    assert rf"m & \begin{{tabular}}[b]{{@{{}}r@{{}}}}{stacked}\end{{tabular}} & iid \\" in to_latex(table)


def test_wide_tables_go_into_blocks():
    columns = tuple(f"c{i}" for i in range(14))
    table = Table("wide", "t", ("m", *columns), (Row("a", tuple(Entry("92.50 ± 0.31") for _ in columns)),))
    assert to_latex(table).count(r"\begin{tabular}") == 3
    assert len(to_rich(table, 80)) == 4
    assert len(to_rich(table)) == 1
    console = Console(width=80, file=io.StringIO())
    for block in to_rich(table, 80):
        console.print(block)
    printed = console.file.getvalue()
    assert printed.count("92.50 ± 0.31") == 14
    assert "…" not in printed


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles_as_it_is(tmp_path):
    runs = tmp_path / "runs"
    write_store(runs, seeds=3, rounds=12)
    write_run(runs, NASTY.replace("/", ""), [0.1], ending="failed", note=NASTY * 3, manifest={"privileges": [NASTY]})
    fragments = [to_latex(table) for table in all_tables(analyse(load(runs)))]
    (tmp_path / "tables.tex").write_text(latex_document(fragments))
    paper = "\n".join([r"\documentclass{article}\usepackage{booktabs}\begin{document}", *fragments, r"\end{document}"])
    (tmp_path / "paper.tex").write_text(paper)  # with what every paper has: no other encoding of fonts
    for name in ("tables", "paper"):
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:]
        assert (tmp_path / f"{name}.pdf").stat().st_size > 10_000


@pytest.mark.parametrize("word", ["=HYPERLINK(1)", "+cmd", "-cmd", "@SUM", "\tx"])
def test_a_word_in_a_csv_is_no_formula(word):
    text = as_csv(pd.DataFrame({"method": [word, "fedavg"], "value": [-1.5, 2.0]}))
    assert f"'{word},-1.5" in text
    assert "\nfedavg,2.0" in text
