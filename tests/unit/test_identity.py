"""What a run's name depends on beyond its settings: the source of plugins."""

import pytest

from fnll import identity
from fnll.config import compose
from fnll.identity import code_of, run_id, source_digest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that Python imports from."""
    monkeypatch.syspath_prepend(tmp_path)
    source_digest.cache_clear()
    yield tmp_path
    source_digest.cache_clear()


def named(*words):
    source_digest.cache_clear()  # as in another process
    return run_id(compose(words), fingerprint="f")


def test_our_own_code_is_told_by_numbers():
    request = compose(["method=fedcorr"])
    assert code_of(identity.settings(request)) == {}


def test_an_edited_module_gives_another_run(folder):
    file = folder / "my_prox_one.py"
    (folder / "configs/method").mkdir(parents=True)
    (folder / "configs/method/mine.yaml").write_text("_target_: my_prox_one.Mine\n_partial_: true\n")

    def name(text):
        file.write_text(text)
        source_digest.cache_clear()
        return run_id(compose(["method=mine"], [folder / "configs"]), fingerprint="f")

    before = name("class Mine: ...")
    assert before.startswith("mine-")
    assert name("class Mine: pass") != before
    assert name("class Mine: ...") == before


def test_every_file_of_a_package_counts_and_nothing_else_in_it(folder):
    package = folder / "plug_many"
    (package / "deep").mkdir(parents=True)
    for file in ("__init__.py", "method.py", "deep/helper.py"):
        (package / file).write_text("")
    config = {"model": {"_target_": "fnll.models.mlp", "parts": [{"_target_": "plug_many.method.Net"}]}}

    def code():
        source_digest.cache_clear()
        return code_of(config)

    before = code()
    assert list(before) == ["plug_many"]
    (package / "notes.txt").write_text("no code")
    assert code() == before
    (package / "deep/helper.py").write_text("x = 1")
    assert code() != before


def test_a_module_without_source_has_no_hash():
    assert code_of({"_target_": "builtins.dict"}) == {}
    assert code_of({"_target_": "no_such_module_anywhere.Thing"}) == {}


def test_settings_that_change_no_number_are_left_out():
    assert named("executor=pool", "runs_dir=elsewhere") == named()
    assert named("seed=1") != named()
