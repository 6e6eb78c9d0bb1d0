"""What a run's name depends on beyond its settings: the source of plugins."""

import pytest

from fnll import identity
from fnll.config import compose
from fnll.executors.cohort import Cohort
from fnll.experiment import revision_of
from fnll.identity import code_of, run_id, source_digest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that Python imports from."""
    monkeypatch.syspath_prepend(tmp_path)
    source_digest.cache_clear()
    yield tmp_path
    source_digest.cache_clear()


def test_vectorised_runs_have_a_revision_of_their_own(monkeypatch):
    vectorised = compose(["executor=cohort"]).cfg
    assert revision_of(compose([]).cfg) == {}
    before = revision_of(vectorised)
    monkeypatch.setattr(Cohort, "revision", Cohort.revision + 1)
    assert revision_of(vectorised) != before


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


def test_what_editors_leave_behind_does_not_count(folder):
    package = folder / "plug_edited"
    (package / ".ipynb_checkpoints").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    before = source_digest("plug_edited")
    (package / ".#method.py").symlink_to("me@host.123:1")  # Emacs
    (package / "gone.py").symlink_to("nowhere")
    (package / ".ipynb_checkpoints/method-checkpoint.py").write_text("old = 1")
    source_digest.cache_clear()
    assert source_digest("plug_edited") == before


def test_of_a_namespace_package_the_files_that_python_takes_count(folder, monkeypatch):
    for name, text in {"first": "x = 1", "second": "x = 2"}.items():
        (folder / name / "plug_spread").mkdir(parents=True)
        (folder / name / "plug_spread/part.py").write_text(text)
    monkeypatch.syspath_prepend(folder / "second")
    monkeypatch.syspath_prepend(folder / "first")
    before = source_digest("plug_spread")
    (folder / "second/plug_spread/part.py").write_text("x = 3")
    source_digest.cache_clear()
    assert source_digest("plug_spread") == before
    (folder / "first/plug_spread/part.py").write_text("x = 4")
    source_digest.cache_clear()
    assert source_digest("plug_spread") != before


def test_partition_and_noise_are_told_by_the_fingerprint(folder):
    (folder / "plug_noise.py").write_text("")
    assert code_of({"noise": {"_target_": "plug_noise.Swap"}}) == {}
    assert list(code_of({"dataset": {"_target_": "plug_noise.data"}})) == ["plug_noise"]  # its transform is not


def test_a_module_without_source_has_no_hash():
    assert code_of({"_target_": "builtins.dict"}) == {}
    assert code_of({"_target_": "no_such_module_anywhere.Thing"}) == {}


def test_settings_that_change_no_number_are_left_out():
    assert named("executor=pool", "runs_dir=elsewhere") == named()
    assert named("seed=1") != named()
