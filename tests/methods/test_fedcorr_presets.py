"""The settings of FedCorr's tables 1 to 5 and 7, as a run would see them."""

from functools import cache

import pytest

from fnll.harness.config import compose


@cache
def preset(method: str, dataset: str, *more: str):
    return compose([f"method={method}", f"dataset={dataset}", f"preset={method}_{dataset}", *more]).cfg


@pytest.mark.parametrize("method", ["fedcorr", "fedcorr_official", "fedavg", "fedprox"])
@pytest.mark.parametrize(
    ("dataset", "clients", "fraction", "rounds", "batch_size", "model"),
    [
        ("cifar10", 100, 0.1, 1000, 10, "cifar_resnet18"),
        ("cifar100", 50, 0.1, 1000, 10, "cifar_resnet34"),
        ("clothing1m", 500, 0.02, 200, 16, "resnet50"),
    ],
)
def test_shared_settings(method, dataset, clients, fraction, rounds, batch_size, model):
    cfg = preset(method, dataset)
    assert (cfg.protocol, cfg.num_clients, cfg.fraction, cfg.rounds) == ("paper", clients, fraction, rounds)
    assert cfg.model._target_ == f"fnll.models.{model}"
    local = cfg.local
    assert (local._target_, local.epochs, local.batch_size) == ("fnll.local.sgd", 5, batch_size)
    assert (local.momentum, local.weight_decay, local.lr_decay) == (0.5, 0.0, 1.0)
    native = dataset == "clothing1m"
    assert cfg.noise._target_ == f"fnll.scenario.noise.models.{'Native' if native else 'RhoTau'}"
    assert cfg.model.pretrained == ("torchvision" if native else None)


@pytest.mark.parametrize(
    ("dataset", "passes", "finetune", "confidence", "relabel_ratio", "rates"),
    [
        ("cifar10", 5, 500, 0.5, 0.5, (0.03, 0.03, 0.01)),
        ("cifar100", 10, 450, 0.5, 0.5, (0.01, 0.01, 0.01)),
        ("clothing1m", 2, 50, 0.9, 0.8, (0.001, 0.003, 0.003)),
    ],
)
def test_own_settings(dataset, passes, finetune, confidence, relabel_ratio, rates):
    for name in ("fedcorr", "fedcorr_official"):
        method = preset(name, dataset).method
        assert (method.passes, method.finetune) == (passes, finetune)
        assert (method.confidence, method.relabel_ratio) == (confidence, relabel_ratio)
        assert (method.clean_level, method.beta, method.mixup_alpha, method.lid_neighbours) == (0.1, 5, 1, 20)
        assert method.stage1_cohort == 1
        assert method.conf_op == ("above" if name == "fedcorr_official" else "at_least")
    assert tuple(preset(name, dataset).local.lr for name in ("fedcorr", "fedavg", "fedprox")) == rates
    assert (preset("fedprox", dataset).method.mu, preset("fedprox", dataset).method.form) == (1.0, "half_squared")


def test_the_command_line_has_the_last_word():
    cfg = preset("fedcorr", "cifar10", "model=lenet5", "local.lr=0.003", "method.passes=3")
    assert (cfg.model._target_, cfg.local.lr, cfg.method.passes) == ("fnll.models.lenet5", 0.003, 3)
