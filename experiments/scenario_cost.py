"""What it costs to build, save, load and describe scenarios: every partition and noise model, on labels alone.

    python experiments/scenario_cost.py                  CIFAR-10's size, 100 clients
    python experiments/scenario_cost.py --size million   a million labels of 14 classes, 500 clients (Clothing1M)

H-IDN trains a network per noisy client, whose cost is that of the images; it is left out. `iid_official` is quadratic,
as the code it repeats; it is left out of the million unless named with --only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fnll.harness.choices import options
from fnll.harness.config import compose
from fnll.harness.prepare import made
from fnll.images import InMemory, Transform
from fnll.scenario import Dataset, build
from fnll.scenario.card import card
from fnll.scenario.file import load, save

SIZES = {"cifar10": (50_000, 10, 100), "million": (1_000_000, 14, 500)}  # samples, classes, clients
IMAGES_DECIDE = ("h_idn", "h_idn_official")
QUADRATIC = ("iid_official",)


def labels_alone(samples: int, classes: int) -> Dataset:
    """A data set of one-pixel images with its classes in random order, and human labels that are wrong one in five."""
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.permutation(np.arange(samples) % classes))
    human = torch.where(torch.from_numpy(rng.random(samples) < 0.2), (labels + 1) % classes, labels)
    images = InMemory(torch.zeros(samples, 1, 1, 1, dtype=torch.uint8))
    test = InMemory(torch.zeros(100, 1, 1, 1, dtype=torch.uint8))
    transform = Transform((0.0,), (1.0,))
    return Dataset("labels", images, labels, test, labels[:100], classes, transform, annotations={"worse": human})


def works(data: Dataset, clients: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and what to time."""

    def builder(partition: str, noise: str) -> Callable[[], Any]:
        cfg = compose([f"partition={partition}", f"noise={noise}"]).cfg
        parts = made(cfg.partition, "partition"), made(cfg.noise, "noise")
        on = replace(data, native_noise=noise == "native")
        return lambda: build(on, *parts, num_clients=clients, seed=0)

    for name in options("partition"):
        yield f"partition={name}", builder(name, "rho_tau")
    for name in options("noise"):
        if name not in IMAGES_DECIDE:
            yield f"noise={name}", builder("iid", name)
    scenario, truth = builder("bernoulli_dirichlet", "rho_tau")()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.npz"
        yield "save", lambda: save(path, data, scenario, truth)
        save(path, data, scenario, truth)
        yield f"load ({path.stat().st_size / 1000:,.0f} kB)", lambda: load(data, path=str(path))
        yield "card", lambda: card(scenario, truth).table()


def main() -> None:
    """Print a table of seconds, the median of the repetitions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=[*SIZES], default="cifar10")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="names, separated by commas: partition=iid,noise=ramp,save")
    args = parser.parse_args()
    torch.set_num_threads(1)
    samples, classes, clients = SIZES[args.size]
    data = labels_alone(samples, classes)
    assert data.digest  # hashed once, before the clock starts
    wanted = [name for name in args.only.split(",") if name]
    print(f"{samples:,} samples, {classes} classes, {clients} clients; seconds, median of {args.repeat}\n")
    for name, work in works(data, clients):
        slow = args.size == "million" and name.removeprefix("partition=") in QUADRATIC
        if (wanted and name.split(" ")[0] not in wanted) or (slow and not wanted):
            continue
        seconds = []
        for _ in range(args.repeat):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        print(f"{name:<40} {statistics.median(seconds):7.2f}", flush=True)


if __name__ == "__main__":
    main()
