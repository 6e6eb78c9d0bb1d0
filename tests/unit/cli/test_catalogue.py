"""`fnll methods` reads what methods say about themselves without importing them, and says what importing would."""

import json
import subprocess
import sys
from importlib import import_module

import pytest

from fnll.cli.methods import cited, main
from fnll.errors import UserError
from fnll.harness import trust
from fnll.harness.catalogue import bibliography, described, head
from fnll.harness.choices import options

PLUGIN = '''
from fnll import FedAvg
from fnll.methods.coteaching import CoTeaching as Pair

WORDS = ("computed",)

class Plain(FedAvg):
    """Somebody, 2026."""

class Heir(Pair):
    """Somebody else, 2026."""

class Computed(FedAvg):
    privileges = WORDS + ("twice",)
'''


@pytest.mark.parametrize("choice", options("method"))
def test_what_is_read_is_what_importing_gives(choice):
    read = described(choice)
    module, _, name = read.target.rpartition(".")
    kind = getattr(import_module(module), name)
    given = tuple(getattr(kind, "privileges", ()))
    assert read.privileges[: len(given)] == given
    assert len(read.privileges) == len(given) + choice.startswith("oracle")
    assert read.paper == kind.__doc__.strip().split("\n")[0]


@pytest.mark.parametrize("choice", options("method"))
def test_every_packaged_method_says_what_it_does_and_what_to_cite(choice):
    said = head(options("method")[choice])
    assert set(said) == {"does", "cite"}
    assert len(said["does"]) < 160, "one line"
    assert set(described(choice).cite) <= set(bibliography())


def test_nothing_is_imported_to_list_them():
    probe = (
        "import sys; from fnll.cli.methods import main; main([]); "
        "print([name for name in ('torch', 'lightning', 'numpy', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "told.py").write_text(PLUGIN)
    (tmp_path / "configs/method").mkdir(parents=True)
    for kind in ("Plain", "Heir", "Computed"):
        (tmp_path / f"configs/method/{kind.lower()}.yaml").write_text(f"_target_: told.{kind}\n_partial_: true\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(trust, "_allowed", {"told", "nowhere_at_all"})
    yield [tmp_path / "configs"]
    sys.modules.pop("told", None)


def test_a_plugin_needs_no_head_and_is_imported_only_for_what_is_computed(plugin):
    plain, heir = described("plain", plugin), described("heir", plugin)
    assert (plain.name, plain.paper, plain.privileges) == ("Plain", "Somebody, 2026.", ())
    assert heir.privileges == described("coteaching").privileges
    assert "told" not in sys.modules
    assert described("computed", plugin).privileges == ("computed", "twice")
    assert "told" in sys.modules


def test_a_class_that_cannot_be_imported_is_named(plugin):
    (plugin[0] / "method/gone.yaml").write_text("_target_: nowhere_at_all.Gone\n_partial_: true\n")
    with pytest.raises(UserError, match=r"nowhere_at_all\.Gone"):
        described("gone", plugin)


def test_code_that_nobody_vouches_for_is_not_even_looked_for(plugin, monkeypatch):
    monkeypatch.setattr(trust, "_allowed", set())
    with pytest.raises(UserError, match="--allow told"):
        described("computed", plugin)
    assert "told" not in sys.modules


def test_released_codes_are_shown_on_request(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    main([])
    assert "fedcorr_official" not in capsys.readouterr().out
    main(["--all"])
    assert "fedcorr_official" in capsys.readouterr().out
    main(["--json"])
    assert "fedcorr_official" in {row["name"] for row in json.loads(capsys.readouterr().out)}


def test_bibtex_has_each_paper_once(capsys):
    assert main(["--bibtex", "fedcorr", "fedcorr_official", "fedcorr_la"]) == 0
    entries = capsys.readouterr().out
    assert (entries.count("xu2022fedcorr"), entries.count("menon2021logit"), entries.count("@")) == (1, 1, 2)
    with pytest.raises(UserError, match="did you mean fedcorr"):
        main(["fedcor"])


def test_a_plugins_own_bibliography_counts(plugin):
    (plugin[0] / "method/plain.yaml").write_text("# cite: me2026\n_target_: told.Plain\n_partial_: true\n")
    with pytest.raises(UserError, match="no BibTeX entry me2026"):
        cited([described("plain", plugin)], plugin)
    (plugin[0] / "references.bib").write_text("@misc{me2026,\n  title = {Mine}\n}\n")
    assert "Mine" in cited([described("plain", plugin)], plugin)[0]
