"""Every `configs/dataset/*.yaml` names a loader and gives exactly its settings."""

from __future__ import annotations

import inspect
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from fnll.errors import UserError
from fnll.scenario import datasets
from fnll.scenario.datasets.options import Shared

CONFIGS = sorted((Path(__file__).parents[4] / "configs" / "dataset").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_keys_are_the_loaders_settings(path):
    config = OmegaConf.load(path)
    assert config._target_ == f"fnll.scenario.datasets.{path.stem}"
    parameters = inspect.signature(getattr(datasets, path.stem)).parameters.values()
    own = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    assert set(config) - {"_target_"} == own | set(Shared.__annotations__)


def test_every_loader_has_a_config():
    assert {path.stem for path in CONFIGS} == set(datasets.__all__)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="imagenet"):
        datasets.imagenet  # noqa: B018


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_defaults_load_or_say_what_is_missing(path, tmp_path, monkeypatch):
    monkeypatch.setenv("FNLL_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("FNLL_CACHE", str(tmp_path / "cache"))
    config = OmegaConf.load(path)
    if "root" not in config:
        assert hydra.utils.call(config).num_classes == 10
        return
    with pytest.raises((UserError, hydra.errors.InstantiationException)) as error:
        hydra.utils.call(config)
    assert "nowhere" in str(error.value)
    assert "dataset.root=" in str(error.value) or "dataset.labels=" in str(error.value)
