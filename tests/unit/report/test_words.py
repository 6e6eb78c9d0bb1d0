"""What a table says about itself: names of rows, what was compared, what was warned of, rows that are other rows."""

import argparse
import json

import pytest
import yaml

from fnll.cli.report import add_arguments
from fnll.errors import UserError
from fnll.harness.choices import config_dir
from fnll.harness.config import take_names
from fnll.plotting.palette import COLOURS, FURTHER, YARDSTICK, colour_of, looks
from fnll.report import analyse, difference_table, load, main_table, to_html, to_latex, to_markdown
from fnll.report.command import main
from fnll.report.common import caption, in_words, settings_table
from fnll.report.document import all_tables
from fnll.report.html import page
from fnll.report.words import DATA, NETWORKS, NOISES, PARTITIONS, counted, listed, word
from fnll.testing.store import write_run
from tiny import compose

CIFAR = {
    "dataset": {"_target_": "fnll.scenario.datasets.cifar10", "subset": 1000, "images": "folder"},
    "model": {"_target_": "fnll.models.lenet5"},
    "num_clients": 10,
    "local.epochs": 2,
    "rounds": 12,
    "eval_every": 1,
}
CHOSEN = {"dataset": "cifar10", "model": "lenet5"}
COPY = {"dataset": "CIFAR-10 (JPEG copy)", "samples": 1000}


def report(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args([str(word) for word in words]))


def warn(root, run_id, *notices):
    (root / run_id / "warnings.jsonl").write_text("".join(json.dumps(notice) + "\n" for notice in notices))


# --- what was compared ------------------------------------------------------------------------------------------------


@pytest.fixture
def cifar(tmp_path):
    for method in ("fedavg", "fedprox"):
        for rho in (0.4, 0.8):
            for seed in range(2):
                config = {**CIFAR, "noise.rho": rho, "noise.tau": 0.5}
                values = [0.2 + 0.01 * seed + 0.1 * (method == "fedprox")] * 12
                write_run(tmp_path, method, values, seed=seed, config=config, choices=CHOSEN, manifest=COPY)
    return load(tmp_path)


def test_a_caption_says_what_was_compared(cifar):
    told = (
        "CIFAR-10 (JPEG copy, 1,000 images), 10 IID clients, 5 a round, LeNet-5, 12 rounds × 2 epochs, τ = 0.5; "
        "mean ± std over 2 seeds"
    )
    assert caption(cifar) == told
    table = main_table(analyse(cifar))
    latex = to_latex(table)
    assert (
        r"\caption{Test accuracy (\%), mean of the last 10 evaluations. CIFAR-10 (JPEG copy, 1,000 images), "
        r"10 IID clients, 5 a round, LeNet-5, 12 rounds $\times$ 2 epochs, $\tau=0.5$; mean $\pm$ std over 2 seeds.}"
    ) in latex
    assert r"method & $\rho=0.4$ & $\rho=0.8$ \\" in latex
    assert r"\label{tab:main_last10}" in latex
    assert told in to_markdown(table)
    assert told in to_html(table)
    assert told not in to_html(table, alone=False)
    html = page(analyse(cifar), table, [], [])
    assert told in html
    assert "<dt>network</dt><dd>LeNet-5</dd>" in html


def test_settings_are_a_table_with_every_key_in_its_csv(cifar):
    words = dict(in_words(cifar))
    assert words["data"] == "CIFAR-10 (JPEG copy, 1,000 images)"
    assert words["budget"] == "12 rounds × 2 epochs: 60 client updates for every method"
    assert words["local training"] == "batches of 10, learning rate 0.05, momentum 0.5"
    assert words["seeds"] == "0, 1"
    table = settings_table(cifar)
    keys = dict(zip(table.data["key"], table.data["value"], strict=True))
    assert (keys["dataset.subset"], keys["model"], keys["noise.tau"], keys["num_clients"]) == (
        "1000", "lenet5", "0.5", "10",
    )  # fmt: skip
    assert "noise.rho" not in keys  # it differs
    assert "settings" in [table.name for table in all_tables(analyse(cifar))]


def test_what_differs_between_columns_is_not_called_common(tmp_path):
    for rounds, clients in ((10, 20), (20, 40)):
        write_run(tmp_path, "fedavg", [0.1] * rounds, config={"num_clients": clients, "rounds": rounds})
    told = caption(load(tmp_path))
    assert "client" not in told
    assert "round" not in told
    assert told.endswith("; one seed")


@pytest.mark.parametrize(
    ("known", "group"), [(DATA, "dataset"), (NETWORKS, "model"), (PARTITIONS, "partition"), (NOISES, "noise")]
)
def test_words_are_for_choices_that_exist(known, group):
    assert known.keys() <= {path.stem for path in (config_dir() / group).glob("*.yaml")}


def test_words():
    assert word(PARTITIONS, "iid_official") == "IID (released code)"
    assert word(DATA, "somebodys") == "somebodys"
    assert [counted(n, "scenario") for n in (1, 2, 1000)] == ["1 scenario", "2 scenarios", "1,000 scenarios"]
    assert [listed("a"), listed("ab"), listed("abc")] == ["a", "a and b", "a, b and c"]


# --- names ------------------------------------------------------------------------------------------------------------


def named(tmp_path, method, target, **options):
    write_run(tmp_path, method, [0.1], config={"method._target_": target}, **options)
    return load(tmp_path).name(next(m for m in load(tmp_path).methods if m.startswith(method)))


def test_a_row_is_called_by_its_yaml_its_class_or_its_file(tmp_path):
    assert named(tmp_path / "a", "fedcorr", "fnll.methods.fedcorr.FedCorr") == "FedCorr"
    assert named(tmp_path / "b", "my_idea", "mine.MyIdea") == "MyIdea"  # a plugin that says nothing
    assert named(tmp_path / "c", "my_variant", "mine.MyIdea") == "my_variant"
    given = {"manifest": {"names": {"method": "My idea (variant)"}}}
    assert named(tmp_path / "d", "my_variant", "mine.MyIdea", **given) == "My idea (variant)"
    inner = {"manifest": {"names": {"method.usual": "Ours"}}, "choices": {"method@method.usual": "ours"}}
    assert named(tmp_path / "e", "fedcorr", "fnll.methods.fedcorr.FedCorr", **inner) == "FedCorr + Ours"


def test_variants_keep_their_settings_and_no_two_rows_share_a_name(tmp_path):
    target = {"method._target_": "fnll.methods.fedprox.FedProx"}
    for mu in (0.1, 0.01):
        write_run(tmp_path, "fedprox", [mu], config={**target, "method.mu": mu})
    for method in ("oracle", "oracle_true_labels"):
        same = {"names": {"method": "Oracle (true labels)"}}
        write_run(tmp_path, method, [0.5], config={"scenario.oracle": "true_labels"}, manifest=same)
    store = load(tmp_path)
    assert [store.name(m) for m in store.methods] == [
        "FedProx (μ=0.01)", "FedProx (μ=0.1)", "oracle", "oracle_true_labels",
    ]  # fmt: skip


def test_a_name_in_the_yaml_is_no_setting_and_changes_no_id():
    plain, renamed = (compose(["method=fedlsr_plus", *words]) for words in ([], ["method.name=Mine"]))
    assert plain.names == {"method": "FedLSR+"}
    assert renamed.names == {"method": "Mine"}
    assert "name" not in plain.cfg.method
    assert plain.cfg == renamed.cfg  # which is what ids are made of
    inner = compose(["method=fedcorr", "method@method.usual=gce"])
    assert inner.names == {"method.usual": "GCE"}
    assert "name" not in inner.cfg.method.usual
    other = {"method": {"_target_": "a.B", "name": None, "head": {"_target_": "a.Head", "name": "kept"}}}
    assert take_names(other, ["method"]) == {}
    assert other == {"method": {"_target_": "a.B", "head": {"_target_": "a.Head", "name": "kept"}}}


def test_every_packaged_method_has_a_name_of_its_own():
    names = {}
    for path in sorted((config_dir() / "method").glob("*.yaml")):
        request = compose([f"method={path.stem}"])
        own = str(request.cfg.method._target_).rsplit(".", 1)[-1]
        names[path.stem] = request.names.get("method") or own
        alike = own.lower() == path.stem.replace("_", "")
        assert request.names or alike, f"{path.name} is not called like its class {own}; give it a `name:`"
    short = names.pop("oracle")
    assert short == names["oracle_true_labels"]  # one thing under two names
    assert len(set(names.values())) == len(names)
    assert (names["fedcorr"], names["poc"]) == ("FedCorr", "Power-of-Choice")


# --- choosing rows and names ------------------------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path):
    for method, value in {"fedavg": 0.5, "fedcorr": 0.7, "fedprox": 0.6, "oracle": 0.9}.items():
        for seed in range(3):
            write_run(tmp_path / "runs", method, [value + seed / 100], seed=seed)
    write_run(tmp_path / "runs", "fedprox", [0.5], config={"noise.rho": 0.9})
    return tmp_path / "runs"


def test_rows_and_names_are_chosen(three, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--rows", "fedcorr,oracle,fedavg", "--names", "fedcorr=Ours, oracle=Upper bound", "--label", "tab:ours"]
    assert report(three, "--out", out, "--no-figures", *words) == 0
    latex = (out / "tables" / "main_last10.tex").read_text()
    body = [line.split(" & ")[0] for line in latex.splitlines() if " & " in line]
    assert body == ["method", "label noise", "Ours", "fedavg", "Upper bound"]  # who does not compete stays below
    assert r"\textbf{71.00" in latex
    assert r"\label{tab:ours}" in latex
    assert r"\label{tab:ours-difference}" in (out / "tables" / "difference.tex").read_text()
    assert "fedprox" not in (out / "report.md").read_text()
    assert "ρ=0.9" not in (out / "report.md").read_text()  # where only fedprox was run
    assert "Ours" in capsys.readouterr().out


def test_by_default_a_report_goes_to_report(three, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report(three, "--no-figures") == 0
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "fedcor"], "did you mean fedcorr"),
        (["--names", "fedcorr"], "ROW=NAME"),
        (["--names", "nobody=X"], "no row called 'nobody'"),
        (["--names", "fedcorr=X,fedavg=X"], "two rows would be called 'X'"),
    ],
)
def test_mistakes_in_them_are_explained(three, tmp_path, words, message):
    with pytest.raises(UserError, match=message):
        report(three, "--out", tmp_path / "out", "--no-figures", *words)


def test_a_name_does_for_a_row_everywhere(tmp_path):
    for method, target in (("fedavg", "fnll.methods.fedavg.FedAvg"), ("fedprox", "fnll.methods.fedprox.FedProx")):
        write_run(tmp_path, method, [0.1 + len(method)], config={"method._target_": target})
    store = load(tmp_path)
    assert analyse(store, reference="FedProx").reference == "fedprox"
    assert store.only(["FedProx", "fedavg"]).order == ("fedprox", "fedavg")
    assert difference_table(analyse(store)).title.startswith("Difference to FedAvg: ")
    both = next(table for table in all_tables(analyse(store)) if table.name == "main_best_last")
    assert [row.label for row in both.rows] == ["FedAvg · best", "FedAvg · last", "FedProx · best", "FedProx · last"]


# --- rows that are other rows, and warnings ---------------------------------------------------------------------------


def test_a_row_that_is_another_bit_for_bit_is_marked_and_never_best(tmp_path):
    for seed in range(3):
        curve = [0.5 + seed / 100, 0.6 + seed / 1000]
        write_run(tmp_path, "fedavg", curve, seed=seed)
        write_run(tmp_path, "fedrn", curve, seed=seed)  # it never left its warm-up
        write_run(tmp_path, "fedprox", [0.1, 0.2 + seed / 100], seed=seed)
    analysis = analyse(load(tmp_path))
    column = analysis.store.cell_labels[0]
    assert analysis.twins == {("fedrn", column): "fedavg"}
    table = main_table(analysis)
    rows = {row.label: row.entries[0] for row in table.rows}
    assert rows["fedavg"].best
    assert (rows["fedrn"].best, rows["fedrn"].tied, rows["fedrn"].twin) == (False, False, True)
    said = "fedrn is fedavg bit for bit, at every evaluation of every run"
    for shown in (table, difference_table(analysis)):
        assert any(said in note for note in shown.caveats)
        assert said in to_markdown(shown)
        assert said in to_latex(shown)
    assert "$^{\\equiv}$" in to_latex(table)
    assert not any("Extra information used" in note for note in table.notes)  # it never used it
    assert said in page(analysis, table, [], [])


def test_alike_is_not_identical(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "fedavg", [0.5, 0.6], seed=seed)
        write_run(tmp_path, "fedrn", [0.5 if seed else 0.51, 0.6], seed=seed)  # one evaluation of one run differs
    assert analyse(load(tmp_path)).twins == {}


def test_warnings_are_footnotes_of_every_table_and_of_the_page(tmp_path):
    few = {"logger": "fnll.scenario.card", "text": "only 4 clients", "about": "only 4 clients"}
    for seed in range(2):
        for method in ("fedavg", "fedcorr"):
            run_id = write_run(tmp_path, method, [0.1 * (1 + seed) + 0.01 * len(method)], seed=seed)
            far = {"logger": "fnll.scenario.card", "text": f"far: client {seed}", "about": "far from nominal"}
            own = (
                [{"logger": "fnll.methods.fedcorr", "text": "no client is clean."}]
                if method == "fedcorr" and seed
                else []
            )
            warn(tmp_path, run_id, few, far, *own)
    analysis = analyse(load(tmp_path))
    expected = (
        "Warning: only 4 clients.",
        "Warning: far from nominal.",  # seeds say it in other words
        "Warning of fedcorr: no client is clean (in 1 of 2 runs).",
    )
    for table in all_tables(analysis):
        if not table.words:
            assert table.caveats == expected
            assert "only 4 clients" in to_latex(table)
    assert page(analysis, main_table(analysis), [], []).count("Warning: only 4 clients.") >= 1


def test_a_warning_of_some_columns_names_them(tmp_path):
    for rho in (0.4, 0.8):
        run_id = write_run(tmp_path, "fedavg", [0.1], config={"noise.rho": rho})
    warn(tmp_path, run_id, {"logger": "fnll.scenario.card", "text": "odd", "about": "odd"})
    assert main_table(analyse(load(tmp_path))).caveats == ("Warning: odd (ρ=0.8).",)


def test_only_notes_that_apply(tmp_path):
    for seed in range(2):
        write_run(tmp_path, "fedavg", [0.1], seed=seed, manifest={"nominal": [0.0], "realised": [0.0]})
        write_run(tmp_path, "fedprox", [0.3], seed=seed, manifest={"nominal": [0.0], "realised": [0.0]})
    notes = main_table(analyse(load(tmp_path))).notes
    assert notes == ("Nothing in bold: below 3 seeds no row is called best.",)


# --- colours ----------------------------------------------------------------------------------------------------------


def test_a_method_has_one_colour_in_every_report():
    known = [path.stem for path in (config_dir() / "method").glob("*.yaml")]
    everybody = looks([*known, "mine", "yours"])
    for method in (*known, "mine"):
        assert looks([method])[method].colour == everybody[method].colour == colour_of(method)
    assert len({(look.colour, look.dash) for look in everybody.values()}) == len(everybody)
    assert colour_of("mine") in (*COLOURS, *FURTHER)
    assert looks(["oracle"], ["oracle"])["oracle"].colour == YARDSTICK


def test_what_most_reports_compare_differs_in_colour():
    assert len({colour_of(name) for name in ("fedavg", "fedcorr", "fednoro", "fedrn", "fedprox")}) == 5
    assert yaml.safe_load((config_dir() / "experiment" / "demo.yaml").read_text())["sweep"]["params"]["method"]
