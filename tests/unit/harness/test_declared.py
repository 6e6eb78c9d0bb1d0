"""Every packaged choice declares its settings, and they are judged before data are loaded."""

from pathlib import Path

import pytest
import yaml
from hydra.utils import get_object

from fnll.errors import UserError
from fnll.harness.declared import check_parts, check_settings
from fnll.harness.prepare import prepare
from fnll.settings import declares_settings, settings_of
from tiny import compose

CONFIGS = Path(__file__).parents[3] / "configs"
MADE_ELSEWHERE = {"defaults", "name", "usual"}  # Hydra's own, a label for reports, and a method inside a method
CHOICES = [
    (f"{group}/{path.stem}", found["_target_"])
    for group in ("dataset", "partition", "noise", "model", "local", "method", "executor", "scenario")
    for path in sorted((CONFIGS / group).glob("*.yaml"))
    if "_target_" in (found := yaml.safe_load(path.read_text()) or {})
]


@pytest.mark.parametrize(("name", "target"), CHOICES)
def test_every_choice_declares_its_settings(name, target):
    found = get_object(target)
    given = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    plain = {key for key, value in given.items() if key[0] != "_" and not isinstance(value, dict)}
    assert plain <= set(settings_of(found)) | MADE_ELSEWHERE, "a setting that nobody judges"
    assert declares_settings(found) or not plain


@pytest.mark.parametrize("words", ["method=fednoro", "method=fedrn method.warmup=20%", "dataset.subset=0.5"])
def test_what_is_fine(words):
    check_settings(compose(words.split()).cfg)
    check_parts(compose(words.split()).cfg)


@pytest.mark.parametrize("word", ["method.mu=-1", "model.width=0", "executor.threads=0", "local.lr=0", "noise.rho=2"])
def test_no_data_are_loaded_for_a_mistake(monkeypatch, word):
    def load():
        raise AssertionError("the data were loaded first")

    monkeypatch.setattr("fnll.scenario.datasets.embedded.load_digits", load)
    with pytest.raises(UserError, match=word.split("=")[0]):
        prepare(compose(["method=fedprox", word]))
