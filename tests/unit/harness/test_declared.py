"""Every packaged choice declares its settings, and they are judged before data are loaded."""

from pathlib import Path

import pytest
import yaml
from hydra.utils import get_object

from fnll.errors import UserError
from fnll.harness.config import compose
from fnll.harness.declared import check_parts, check_settings
from fnll.harness.prepare import prepare
from fnll.settings import declares_settings, settings_of

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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("dataset.imbalance=inf", "dataset.imbalance must be finite and at least 1, or null, got inf; the size of"),
        ("dataset.subset=true", r"dataset.subset must be null, a count .* or a fraction in \(0, 1\], got true"),
        ("dataset.subset='100'", "dataset.subset must be null, .* got '100'"),
        (
            "dataset=image_folder dataset.root=x dataset.std=[0,0,0]",
            "std must be 3 values, each greater than 0",
        ),
        ("dataset=image_folder dataset.root=x dataset.mean=[0,0]", "dataset.mean must be 3 values, each a number"),
        ("dataset=image_folder dataset.root=x dataset.mean=[0,0,inf]", "dataset.mean must be 3 values"),
        ("dataset=image_folder dataset.root=x dataset.flip=maybe", "dataset.flip must be true or false, got 'maybe'"),
        ("dataset=cifar10 dataset.images=tar", "dataset.images must be batches .* or folder"),
        ("dataset=cifar10 dataset.download=1", "dataset.download must be true or false, got 1"),
        ("dataset=cifar10 dataset.root=null", "dataset.root must be the path of a folder or a zip file, got null"),
        ("method=fedcorr method.eval_augment=3", "method.eval_augment must be true or false, got 3"),
        ("method=fedprox method.mu='1'", "method.mu must be at least 0, got '1'"),
        ("model.width=1.5", "model.width must be a whole number of at least 1, got 1.5; a layer needs"),
        (
            "model=mlp model.hidden=[8,0]",
            r"model.hidden must be a list of widths, each of at least one unit, got \[8, 0\]",
        ),
        ("executor=pool executor.workers=0", "executor.workers must be a whole number of at least 1, got 0"),
        ("executor=vectorised executor.chunk=true", "executor.chunk must be a whole number of at least 1, got true"),
        ("noise.rho=2", r"noise.rho must be in \[0, 1\], got 2"),
    ],
)
def test_what_is_refused_and_how(words, message):
    with pytest.raises(UserError, match=message):
        check_parts(compose(words.split()).cfg)


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
