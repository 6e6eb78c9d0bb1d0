"""How a reader calls what configs name: data sets, networks, partitions, methods. What is not listed keeps its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fnll.report.folders import StoredRun

DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar10n": "CIFAR-10N",
    "cifar100n": "CIFAR-100N",
    "clothing1m": "Clothing1M",
    "digits": "8×8 digits",
    "fashion_mnist": "Fashion-MNIST",
    "ich": "RSNA ICH",
    "isic2019": "ISIC 2019",
    "mnist": "MNIST",
    "synthetic": "synthetic images",
    "webvision_mini": "mini-WebVision",
}
NETWORKS = {
    "cifar_resnet18": "ResNet-18 for CIFAR",
    "cifar_resnet34": "ResNet-34 for CIFAR",
    "cnn4conv": "CNN with four convolutions",
    "lenet5": "LeNet-5",
    "mlp": "MLP",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "small_cnn": "small CNN",
    "vgg11": "VGG-11",
}
PARTITIONS = {
    "bernoulli_dirichlet": "Bernoulli–Dirichlet",
    "dirichlet": "Dirichlet",
    "iid": "IID",
    "quantity": "quantity-skewed",
    "shards": "shards",
}
NOISES = {
    "h_idn": "FedNoRo's H-IDN",
    "h_random": "FedNoRo's clients, labels at random",
    "human": "labels by people",
    "native": "labels as published",
    "none": "clean labels",
    "ramp": "FedRN's ramp",
    "rho_tau": "FedCorr's model",
}
RELEASED = "_official"


def word(known: Mapping[str, str], choice: str) -> str:
    """A choice of a config group in a reader's word; `NAME_official` is what the released code does."""
    if choice not in known and choice.endswith(RELEASED):
        return f"{word(known, choice.removesuffix(RELEASED))} (released code)"
    return known.get(choice, choice)


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def display_name(run: StoredRun) -> str:
    """A method as tables call it: the `name` of its YAML, else its class, if the YAML is called like it.

    A plugin whose `better.yaml` configures the class `Better` is `Better` without a word; a second YAML for the same
    class needs a `name`, and is called like its file without one. Methods inside are added: `FedCorr + FedProx`.
    """
    names: Mapping[str, Any] = run.manifest.get("names") or {}
    slots = ["method", *sorted(slot for slot in run.choices if slot.startswith("method@"))]
    return " + ".join(_name(run, slot, names) for slot in slots)


def _name(run: StoredRun, slot: str, names: Mapping[str, Any]) -> str:
    place = slot.removeprefix("method@") or "method"
    if names.get(place):
        return str(names[place])
    choice = str((run.summary.get("method") if slot == "method" else None) or run.choices.get(slot) or "")
    choice = choice or run.run_id.rsplit("-", 1)[0]
    own = str(run.config.get(f"{place}._target_") or "").rsplit(".", 1)[-1]
    return own if _letters(own) == _letters(choice) else choice


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
