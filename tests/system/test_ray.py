"""Ray: the numbers of `Serial` on a cluster of one machine, also when a worker dies."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fnll.errors import UserError
from fnll.executors import Ray, Serial
from fnll.executors.agenda import WorkerDiedError
from fnll.executors.ray import capacity

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs" / "executor"
sys.path.insert(0, str(HERE))

from executor_jobs import EVERYONE, Odd, assert_same, call, initial, round_of_calls, scenario  # noqa: E402


@pytest.fixture(scope="module")
def ray() -> Iterator[Ray]:
    """An executor that starts Ray on this machine."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))  # for the workers: on a cluster the jobs' package is installed
        with Ray(scenario(), workers=2, num_cpus=0.25) as executor:
            yield executor


@pytest.mark.slow
def test_results_are_those_of_serial_bit_for_bit(ray: Ray) -> None:
    calls = round_of_calls(EVERYONE)
    expected = Serial(scenario()).map(calls)
    assert_same(ray.map(calls), expected)
    assert_same(ray.map(calls[::-1]), expected[::-1])
    assert ray.map([]) == []


@pytest.mark.slow
def test_received_tensors_are_ordinary_ones(ray: Ray) -> None:
    (update,) = ray.map([call(Odd().large, 0, n=1 << 20)])
    assert update.weights is not None
    update.weights["w"].add_(1)  # what Ray's object store holds could not be written
    assert update.weights["w"][-1].item() == 1 << 20


@pytest.mark.slow
def test_a_job_that_kills_its_worker_is_done_again(ray: Ray, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = initial()
    calls = [call(Odd(str(tmp_path)).die_once, k, weights=weights, victims=(0, 5)) for k in EVERYONE]
    with caplog.at_level(logging.WARNING):
        updates = ray.map(calls)
    assert caplog.text.count("its worker died") == 2
    assert_same(updates, Serial(scenario()).map(calls))  # the markers of the first deaths are there


@pytest.mark.slow
def test_workers_killed_between_maps_are_replaced(ray: Ray) -> None:
    calls = round_of_calls(EVERYONE)
    expected = ray.map(calls)
    pids = {update.report["pid"] for update in ray.map([call(Odd().who, k) for k in EVERYONE])}
    for pid in pids:
        os.kill(int(pid), signal.SIGKILL)  # type: ignore[arg-type]
    assert_same(ray.map(calls), expected)


@pytest.mark.slow
def test_a_job_that_always_kills_its_worker_is_given_up_with_its_name(ray: Ray) -> None:
    with pytest.raises(WorkerDiedError, match=r"client 2, round 7, job always_die: .* died 3 times"):
        ray.map([call(Odd().always_die, 2, t=7)])
    assert_same(ray.map(round_of_calls([4])), Serial(scenario()).map(round_of_calls([4])))


@pytest.mark.slow
def test_a_jobs_exception_is_raised_here_with_its_notes_and_traceback(ray: Ray) -> None:
    with pytest.raises(LookupError, match="no such thing at client 0") as caught:
        ray.map([call(Odd().fail, k, t=3, who=(4, 0)) for k in EVERYONE])
    assert caught.value.__notes__ == ["client 0, round 3, job fail"]
    assert "executor_jobs.py" in str(caught.value.__cause__)


@pytest.mark.slow
def test_a_second_executor_joins_the_running_cluster_and_leaves_it_running(ray: Ray) -> None:
    import ray as library

    ray.map(round_of_calls([4]))
    with Ray(scenario(), workers=1, num_cpus=0.25) as second:
        assert_same(second.map(round_of_calls([2])), ray.map(round_of_calls([2])))
    assert library.is_initialized()
    with pytest.raises(RuntimeError, match="closed"):
        second.map([])


@pytest.mark.parametrize(
    ("num_cpus", "num_gpus", "room"),
    [
        (1, 0, 12),
        (4, 0, 2),
        (3, 0, 3),
        (0.5, 0, 24),
        (1, 1, 3),
        (1, 0.5, 6),
        (1, 0.4, 6),
        (1, 0.3, 9),
        (2, 0.3, 5),
        (1, 2, 1),
    ],
)
def test_capacity_counts_whole_workers_on_whole_machines(num_cpus: float, num_gpus: float, room: int) -> None:
    nodes: list[dict[str, Any]] = [
        {"Alive": True, "Resources": {"CPU": 7.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 5.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 100.0, "GPU": 8.0}},
        {"Alive": True, "Resources": {"memory": 1e9}},
    ]
    assert capacity(nodes, num_cpus, num_gpus) == room


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "executor.workers must be a whole number of at least 1, got 0"),
        ({"threads": 0}, "executor.threads must be a whole number from 1 to 1024"),
        ({"num_cpus": 0}, "executor.num_cpus must be greater than 0"),
        ({"num_gpus": -1}, "executor.num_gpus must be at least 0"),
        ({"device": "cuda"}, "executor.num_gpus must be greater than 0 for device=cuda"),
    ],
)
def test_bad_settings_say_what_to_type(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Ray(scenario(), **settings)
    assert message in str(caught.value)


def test_a_missing_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'fnll\[ray\]'"):
        Ray(scenario())


def test_an_address_without_a_cluster_says_how_to_start_one() -> None:
    pytest.importorskip("ray")

    def refuse(**settings: Any) -> None:
        raise ConnectionError("nobody there")

    executor = Ray(scenario(), address="far-away:6379")
    executor._ray = SimpleNamespace(is_initialized=lambda: False, init=refuse)  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"executor.address=far-away:6379: no Ray cluster answers .*ray start --head"):
        executor.map(round_of_calls([0]))


def test_the_config_makes_the_executor() -> None:
    pytest.importorskip("ray")
    config = OmegaConf.load(CONFIGS / "ray.yaml")
    config.threads = 2
    executor = instantiate(config)(scenario=scenario(), device=torch.device("cpu"))
    assert isinstance(executor, Ray)
    assert executor.resources == {"num_cpus": 2, "num_gpus": 0}
    executor.close()
