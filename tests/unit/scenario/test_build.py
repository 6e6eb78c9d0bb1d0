"""Scenarios: every partition and noise model that has a config file, put together, as clients see them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from fnll.errors import UserError
from fnll.images import InMemory, Transform
from fnll.scenario import Dataset, Scenario, Truth, build
from fnll.scenario.noise.models import Native, NoNoise, RhoTau
from fnll.scenario.partition.official import IidOfficial
from fnll.scenario.partition.partitions import Iid

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
NOISES = sorted(path.stem for path in (CONFIGS / "noise").glob("*.yaml"))
PARTITIONS = sorted({path.stem for path in (CONFIGS / "partition").glob("*.yaml")} - {"given"})  # which draws nothing


def configured(group: str, name: str, *overrides: str) -> Any:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return instantiate(compose(f"{group}/{name}", list(overrides))[group])


def dataset(n: int = 600, **options: Any) -> Dataset:
    """Ten classes in random order; the pixels of image i spell i, so that a batch says which images it holds."""
    index = torch.arange(n)
    pixels = torch.stack([index // 256, index % 256], dim=1).to(torch.uint8).view(n, 2, 1, 1)
    labels = torch.from_numpy(np.random.default_rng(0).permutation(np.arange(n) % 10))
    human = {"worse": (labels + (index % 3 == 0)) % 10, "aggre": (labels + (index % 10 == 0)) % 10}
    test = InMemory(pixels[:20])
    return Dataset(
        "tiny",
        InMemory(pixels),
        labels,
        test,
        labels[:20],
        10,
        Transform((0.0, 0.0), (1 / 255, 1 / 255)),
        annotations=human,
        **options,
    )


def scenario(noise: Any, *, partition: Any = None, seed: int = 3, **options: Any) -> tuple[Scenario, Truth]:
    data = dataset(native_noise=isinstance(noise, Native))
    return build(data, partition or Iid(1), noise, num_clients=10, seed=seed, **options)


@pytest.mark.parametrize("name", NOISES)
def test_batches_yield_the_observed_labels_of_the_images_they_hold(name):
    """A rival's CIFAR-N runs train on clean labels because the noisy ones are assigned to the wrong attribute."""
    built, truth = scenario(configured("noise", name))
    wrong = 0
    for k, shard in enumerate(built.shards):
        client = built.client(k, t=0, memory={}, labels=None, seed=k, device=torch.device("cpu"))
        seen = []
        for batch in client.batches(16, epochs=1):
            image = (batch.x[:, 0, 0, 0] * 256 + batch.x[:, 1, 0, 0]).round().long()
            assert torch.equal(image, shard[batch.index])
            assert torch.equal(batch.y, built.labels[image])
            wrong += 0 if truth.labels is None else int((batch.y != truth.labels[image]).sum())
            seen.append(image)
        assert torch.equal(torch.cat(seen).sort().values, shard.sort().values)
    assert (wrong > 0) == (name not in ("none", "native"))
    if truth.labels is not None:
        expected = sum(level * len(shard) for level, shard in zip(truth.realised.tolist(), built.shards, strict=True))
        assert wrong == round(expected)


@pytest.mark.parametrize("name", NOISES)
def test_the_noisy_clients_of_the_truth_are_those_with_a_level(name):
    built, truth = scenario(configured("noise", name))
    assert truth.nominal.shape == truth.realised.shape == (10,)
    if name == "native":
        assert truth.labels is None
        assert truth.nominal.isnan().all()
        assert truth.realised.isnan().all()
    else:
        assert truth.noisy_clients <= set(torch.nonzero(truth.nominal)[:, 0].tolist())
        assert torch.equal(truth.labels, dataset().labels)
    assert built.origin == built.fingerprint


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_configured_partition_splits_the_data(name):
    partition = configured("partition", name)
    built, _ = build(dataset(), partition, RhoTau(0.6, 0.5, "exact", "all"), num_clients=10, seed=0)
    used = torch.cat(built.shards)
    assert len(built.shards) == 10
    assert len(used) == len(used.unique()) == 600


@pytest.mark.parametrize("name", PARTITIONS)
def test_another_seed_gives_another_partition(name):
    partition = configured("partition", name)
    first, again, other = (scenario(NoNoise(), partition=partition, seed=seed)[0].fingerprint for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("name", NOISES)
def test_another_seed_gives_other_labels_on_the_same_partition(name):
    noise, partition = configured("noise", name), IidOfficial(1)
    first, again, other = (scenario(noise, partition=partition, seed=seed)[0].fingerprint for seed in (1, 1, 2))
    assert first == again
    assert (first != other) == (name not in ("none", "native", "human"))  # nothing is drawn there


@pytest.mark.parametrize("noise", ["rho_tau", "ramp", "h_idn"])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("oracle", ["none", "drop_noisy", "true_labels"])
def test_oracle_and_pooled_scenarios_derive_from_the_same_labels(noise, oracle, pooled):
    origin, truth = scenario(configured("noise", noise))
    derived, about = scenario(configured("noise", noise), oracle=oracle, pooled=pooled)
    assert derived.origin == origin.fingerprint
    assert (derived.fingerprint == origin.fingerprint) == (oracle == "none" and not pooled)
    assert torch.equal(about.labels, truth.labels)
    assert len(derived.shards) == (1 if pooled else 10)
    wrong = origin.labels != truth.labels
    assert torch.equal(derived.labels, truth.labels if oracle == "true_labels" else origin.labels)
    kept = [shard[~wrong[shard]] if oracle == "drop_noisy" else shard for shard in origin.shards]
    assert torch.equal(torch.cat(derived.shards), torch.cat(kept))
    assert about.realised.sum() == 0 or oracle == "none"
    if pooled and oracle == "none":
        torch.testing.assert_close(about.realised, wrong.double().mean()[None])


def test_an_oracle_needs_the_truth():
    with pytest.raises(UserError, match=r"scenario\.oracle=drop_noisy needs clean labels"):
        scenario(Native(), oracle="drop_noisy")


def test_dropped_samples_stay_out_of_a_pooled_scenario():
    data = dataset(604)
    pooled, _ = build(data, IidOfficial(1), NoNoise(), num_clients=10, seed=0, pooled=True)
    assert pooled.sizes == (600,)


def test_requests_that_cannot_be_met():
    with pytest.raises(UserError, match="num_clients=601 is more than the 600 training samples of tiny"):
        build(dataset(), Iid(1), NoNoise(), num_clients=601, seed=0)
    with pytest.raises(UserError, match="num_clients must be a whole number of at least 1"):
        build(dataset(), Iid(1), NoNoise(), num_clients=0, seed=0)
    with pytest.raises(UserError, match=r"scenario\.oracle must be one of none, drop_noisy, true_labels"):
        build(dataset(), Iid(1), NoNoise(), num_clients=5, seed=0, oracle="all")


def test_the_fingerprint_covers_images_labels_and_shards():
    data = dataset()
    base = build(data, Iid(1), NoNoise(), num_clients=10, seed=0)[0].fingerprint
    brighter = replace(data, train=InMemory(data.train.pixels + 1))
    assert build(brighter, Iid(1), NoNoise(), num_clients=10, seed=0)[0].fingerprint != base
    assert build(data, Iid(1), NoNoise(), num_clients=9, seed=0)[0].fingerprint != base
    assert build(data, Iid(1), RhoTau(1.0, 0.5, "exact", "all"), num_clients=10, seed=0)[0].fingerprint != base


def test_a_partition_that_disagrees_with_num_clients_is_refused() -> None:
    def four(labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        return np.array_split(np.arange(len(labels)), 4)

    assert len(build(dataset(), four, NoNoise(), num_clients=4, seed=0)[0].shards) == 4
    with pytest.raises(UserError, match="gives 4 clients where num_clients=20; type num_clients=4"):
        build(dataset(), four, NoNoise(), num_clients=20, seed=0)
