"""What a run's name depends on beyond its settings: the source of plugins, not where our own classes lie."""

import re
import shutil

import pytest

from fnll.executors.vectorised import Vectorised
from fnll.harness import choices, config, identity, trust
from fnll.harness.choices import config_dir, options
from fnll.harness.config import compose
from fnll.harness.identity import code_of, packaged_names, run_id, source_digest
from fnll.harness.prepare import revision_of

CHOICES = {
    group: [f"{group}={name}" for name in options(group) if name != "image_folder"]  # which needs a folder
    for group in ("dataset", "partition", "noise", "model", "local", "method")
}


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    monkeypatch.setattr(trust, "_allowed", {"mine", "my_prox_one", "plug_many"})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that Python imports from."""
    monkeypatch.syspath_prepend(tmp_path)
    source_digest.cache_clear()
    yield tmp_path
    source_digest.cache_clear()


def test_vectorised_runs_have_a_revision_of_their_own(monkeypatch):
    vectorised = compose(["executor=vectorised"]).cfg
    assert revision_of(compose([]).cfg) == {}
    before = revision_of(vectorised)
    monkeypatch.setattr(Vectorised, "revision", Vectorised.revision + 1)
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


def test_the_default_of_a_group_is_the_same_run_when_it_is_typed():
    usual = compose([])
    defaults = [f"{group}={usual.choices[group]}" for group in CHOICES]
    assert len(defaults) == 6
    assert {named(word) for word in defaults} == {named()}


def test_settings_that_change_no_number_are_left_out():
    assert named("executor=pool", "runs_dir=elsewhere") == named()
    assert named("seed=1") != named()


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """Call it to have every class of ours somewhere else, under another name."""

    def move():
        shutil.copytree(config_dir(), tmp_path / "configs")
        for file in (tmp_path / "configs").rglob("*.yaml"):
            elsewhere = re.sub(
                r"(?<=_target_: )fnll\.(\S+)", lambda m: f"fnll.x.{m[1].replace('.', '_')}", file.read_text()
            )
            file.write_text(elsewhere)
        for module in (choices, config, identity):
            monkeypatch.setattr(module, "config_dir", lambda: tmp_path / "configs")

    return move


def test_a_name_survives_the_move_of_everything_it_is_made_of(moved):
    every = max(map(len, CHOICES.values()))  # the longest group once, the others in company
    words = [[group[i % len(group)] for group in CHOICES.values()] for i in range(every)] + [
        ["method=fedcorr", "method@method.usual=fedprox"],
        ["dataset=image_folder", "dataset.root=x"],
    ]
    before = [named(*some) for some in words]
    assert len(set(before)) == len(before)
    moved()
    assert compose(["method=fedcorr"]).cfg.method._target_.startswith("fnll.x."), "or nothing was moved"
    assert [named(*some) for some in words] == before


def test_things_without_settings_of_their_own_are_told_apart():
    models = ["cifar_resnet18", "cifar_resnet34"]
    settings = [identity.settings(compose([f"model={name}"]))["model"] for name in models]
    assert settings[0].keys() == settings[1].keys(), "or the test shows nothing"
    assert named("model=cifar_resnet18") != named("model=cifar_resnet34")


def test_a_target_that_is_not_the_packaged_one_counts(folder):
    usual = named()
    typed = [
        named(f"method._target_={target}") for target in ("mine.First", "mine.Second", "fnll.methods.fedprox.FedProx")
    ]
    assert len({usual, *typed}) == 4
    assert named("method._target_=fnll.methods.fedavg.FedAvg") == usual


def test_a_choice_of_ones_own_is_known_by_the_class_it_configures(folder):
    (folder / "method").mkdir()

    def name(target):
        (folder / "method/mine.yaml").write_text(f"_target_: {target}\n_partial_: true\n")
        return run_id(compose(["method=mine"], [folder]), fingerprint="f")

    of_ours = name("fnll.methods.fedavg.FedAvg")
    assert of_ours.removeprefix("mine-") == named().removeprefix("fedavg-"), "the same thing with the same settings"
    assert len({of_ours, name("fnll.methods.fedla.FedLA"), name("mine.FedAvg")}) == 3


def test_nested_targets_count_like_others():
    words = ["method=fedcorr", "method@method.usual=fedprox"]
    assert named(*words) != named(*words, "method.usual._target_=mine.FedProx")
    words = ["noise=h_idn"]
    assert named(*words) != named(*words, "noise.annotator._target_=mine.Annotator")


def test_of_several_choices_with_one_class_the_plain_one_names_it():
    names = packaged_names(config_dir())
    assert names["fnll.methods.fedrn.FedRN"] == "method/fedrn"
    assert names["fnll.methods.fedavg.FedAvg"] == "method/fedavg", "oracle states it, too"
    assert names["fnll.scenario.noise.annotator.Annotator"] == "noise/h_idn.annotator"
    assert len(set(names.values())) == len(names)


def test_classes_of_one_group_differ_in_their_last_names():
    """By which reports and scenario files know them after a move."""
    short = [(name.split("/")[0], target.rsplit(".", 1)[-1]) for target, name in packaged_names(config_dir()).items()]
    assert len(set(short)) == len(short)
