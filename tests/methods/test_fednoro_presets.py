"""The settings of FedNoRo's tables 1 and 2, as a run would see them."""

from functools import cache

import pytest
from omegaconf import DictConfig, OmegaConf

from fnll.harness.config import compose
from fnll.harness.prepare import made
from fnll.local import LocalSpec

METHODS = ("fedavg", "fedprox", "fedla", "fednoro", "fednoro_official")


@cache
def preset(method: str, dataset: str) -> DictConfig:
    return compose([f"method={method}", f"dataset={dataset}", f"preset={method}_{dataset}"]).cfg


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("dataset", "rounds", "epochs", "pretrained"), [("ich", 100, 5, None), ("isic2019", 300, 1, "torchvision")]
)
def test_shared_settings(method: str, dataset: str, rounds: int, epochs: int, pretrained: str | None) -> None:
    cfg = preset(method, dataset)
    assert (cfg.protocol, cfg.fraction, cfg.num_clients, cfg.rounds) == ("paper", 1.0, 20, rounds)
    assert (cfg.model._target_, cfg.model.pretrained) == ("fnll.models.resnet18", pretrained)
    local = OmegaConf.to_container(cfg.local)
    assert local == {
        "_target_": "fnll.local.adam",
        "epochs": epochs,
        "batch_size": 16,
        "lr": 3e-4,
        "betas": [0.9, 0.999],
        "weight_decay": 5e-4,
        "lr_decay": 1.0,
        "clip_norm": None,
        "keep_optimizer": False,
        "precision": "32-true",
    }


@pytest.mark.parametrize(
    ("dataset", "mu", "warmup", "ramp", "official_ramp"),
    [("ich", 0.01, 10, (10, 39), (10, 39)), ("isic2019", 0.1, 20, (20, 100), (10, 39))],
)
def test_own_settings(
    dataset: str, mu: float, warmup: int, ramp: tuple[int, int], official_ramp: tuple[int, int]
) -> None:
    assert preset("fedprox", dataset).method.mu == mu
    for name, expected in (("fednoro", ramp), ("fednoro_official", official_ramp)):
        method = preset(name, dataset).method
        assert (method.warmup, method.ramp_begin, method.ramp_rounds) == (warmup, *expected)
        assert (method.kd_weight, method.temperature) == (0.8, 0.8)


def test_the_command_line_has_the_last_word() -> None:
    cfg = compose(["method=fednoro", "dataset=ich", "preset=fednoro_ich", "local=sgd", "local.lr=0.1", "rounds=7"]).cfg
    assert (cfg.local.lr, cfg.rounds) == (0.1, 7)
    assert isinstance(made(cfg.local, "local"), LocalSpec)  # nothing of Adam's is left behind
