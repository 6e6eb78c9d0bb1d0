"""From words to a config: mistakes in plain words."""

from __future__ import annotations

import pytest

from fnll.errors import UserError
from fnll.harness.config import compose


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("partition.per_client=3", r"partition=iid has no setting 'per_client'; .* shards, shards_official$"),
        ("noise.annotator.width=4", r"noise=rho_tau has no setting 'annotator\.width'; .* h_idn, h_idn_official$"),
        ("partition.per_clients=3", r"no setting called 'partition\.per_clients'; did you mean partition\.per_client"),
        ("roundz=3", r"no setting called 'roundz'; did you mean rounds"),
        ("noise=rho", r"there is no noise called 'rho'; did you mean"),
    ],
)
def test_a_word_that_fits_nowhere_names_where_it_would(word, message):
    with pytest.raises(UserError, match=message):
        compose([word])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method="], "method needs a choice; leave it out, or type method=NAME with one of .*fedavg, "),
        (["experiment=null"], "experiment needs a choice; leave it out"),
        (["noise=null"], "noise needs a choice"),
        (["~dataset"], "dataset needs a choice"),
        (["method=../method/fedavg"], r"there is no method called .\.\./method/fedavg"),
        (["foo"], r"cannot read 'foo' \(missing EQUAL at '<EOF>'\); type SETTING=VALUE"),
        (["+roundz=3"], "there is no setting called 'roundz'; did you mean rounds"),
        (["+eval.batchsize=3"], r"there is no setting called 'eval\.batchsize'; did you mean eval\.batch_size"),
        (["+xyzzy=3"], "there is no setting called 'xyzzy'; `fnll run --cfg job` prints every setting$"),
        (["~rounds"], r"rounds has no value; type rounds=\.\.\."),
        (["~eval.overlap"], r"eval\.overlap has no value"),
        (["rounds=${nosuch}"], "Interpolation key 'nosuch' not found"),
    ],
)
def test_words_that_hydra_answers_with_its_internals(words, message):
    with pytest.raises(UserError, match=message):
        compose(words)


def test_a_misspelt_setting_in_a_yaml_is_refused(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nroundz: 3\n")
    with pytest.raises(UserError, match="there is no setting called 'roundz'; did you mean rounds"):
        compose(["experiment=mine"], [tmp_path])


def test_what_is_not_yaml_is_said_with_its_place(tmp_path):
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text("mu: [1,\n")
    with pytest.raises(UserError, match=r"mine\.yaml, line 2 is not YAML"):
        compose(["method=mine"], [tmp_path])


def test_settings_of_choices_in_a_folder_of_ones_own_are_known(tmp_path):
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "mine.yaml").write_text("_target_: fnll.scenario.noise.models.NoNoise\nstrength: 1\n")
    with pytest.raises(UserError, match=r"noise=rho_tau has no setting 'strength'; .* have it: mine$"):
        compose(["noise.strength=2"], [tmp_path])


def test_preset_paper_is_the_world_of_method_and_data_set(caplog):
    request = compose(["preset=paper", "dataset=cifar10", "method=fedcorr"])
    assert request.choices["paper"] == "fedcorr/cifar10"
    assert "preset=paper is called paper=fedcorr/cifar10 since 0.3" in caplog.text
    assert request.cfg.protocol == "paper"
    assert request.cfg.local.lr == 0.03
    assert request.cfg == compose(["preset=fedcorr_cifar10", "dataset=cifar10", "method=fedcorr"]).cfg


def test_preset_paper_stays_shared_where_no_paper_has_settings(caplog):
    request = compose(["preset=paper", "dataset=digits", "method=fedprox"])
    assert request.cfg.protocol == "shared"
    assert "no paper has settings for method=fedprox on dataset=digits" in caplog.text
