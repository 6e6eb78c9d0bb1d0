"""From words to a config: mistakes in plain words."""

from __future__ import annotations

import pytest

from fnll.errors import UserError
from fnll.harness.config import compose


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
    assert "preset=paper is called paper=fedcorr/cifar10 since 0.2" in caplog.text
    assert request.cfg.protocol == "paper"
    assert request.cfg.local.lr == 0.03
    assert request.cfg == compose(["preset=fedcorr_cifar10", "dataset=cifar10", "method=fedcorr"]).cfg


def test_preset_paper_stays_shared_where_no_paper_has_settings(caplog):
    request = compose(["preset=paper", "dataset=digits", "method=fedprox"])
    assert request.cfg.protocol == "shared"
    assert "no paper has settings for method=fedprox on dataset=digits" in caplog.text
