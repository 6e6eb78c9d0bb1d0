"""Runs as tasks of a Ray cluster, or of Ray on this machine. All nodes must see the store under the same path."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field

from fnll.errors import UserError, require
from fnll.settings import check_arguments
from fnll.sweep.bundles import Bundle
from fnll.sweep.events import Ended, Event, Lost, Outcome
from fnll.sweep.grid import PlannedRun
from fnll.system.processes import usable_cores


@dataclass
class Share:
    """What Ray sets aside for each run."""

    num_cpus: Annotated[float, Field(gt=0, description="cores that Ray sets aside for each run")]
    num_gpus: Annotated[float, Field(ge=0, description="GPUs for each run; 0.25 lets four share one")]


class RayLauncher:
    """Every run a task of its own; Ray starts as many as the cluster has room for and reuses their processes."""

    patience = 5.0
    together = 1

    def __init__(self, settings: Mapping[str, Any], total: int) -> None:
        address, num_cpus, num_gpus = settings["address"], settings["num_cpus"], settings["num_gpus"]
        check_arguments(Share, settings, "sweep.ray")
        self.room, self.manner = total, "as tasks of Ray"
        self._ray, queues = _import_ray()
        self._started_ray = not self._ray.is_initialized()
        if self._started_ray:
            self._connect(address)
        self._task = self._ray.remote(num_cpus=num_cpus, num_gpus=num_gpus, max_retries=0)(_perform)
        self._queue = queues.Queue(actor_options={"num_cpus": 0, "scheduling_strategy": self._here()})
        self._running: dict[Any, tuple[int, PlannedRun]] = {}  # by the reference to the outcome
        self._runs: dict[int, PlannedRun] = {}  # what the numbers in the queue mean

    def submit(self, bundles: Sequence[Bundle]) -> None:
        for run in (run for bundle in bundles for run in bundle):
            number = len(self._runs)
            self._runs[number] = run
            self._running[self._task.remote(number, run, self._queue, os.getcwd())] = number, run

    def events(self, timeout: float) -> list[tuple[PlannedRun, Event]]:
        done, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=timeout)
        open_numbers = {number for number, _ in self._running.values()}
        said = self._queue.get_nowait_batch(self._queue.qsize())
        told = [(self._runs[number], event) for number, event in said if number in open_numbers]
        return told + [self._settle(reference) for reference in done]

    def _settle(self, reference: Any) -> tuple[PlannedRun, Event]:
        _, run = self._running.pop(reference)
        try:
            return run, Ended(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            return run, Lost(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._queue.shutdown(force=True)
        if self._started_ray:
            self._ray.shutdown()

    def _here(self) -> Any:
        """On the node that the sweep itself is on: if another is lost, the sweep must still hear of the runs."""
        node = self._ray.get_runtime_context().get_node_id()
        return self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)

    def _connect(self, address: str | None) -> None:
        if address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            where: dict[str, Any] = {"address": "local", "num_cpus": usable_cores(), "include_dashboard": False}
        else:
            where = {"address": address}
        try:
            self._ray.init(**where, logging_level=logging.WARNING, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(
                f"sweep.ray.address={address}: no Ray cluster answers there ({error}); start one with "
                "`ray start --head`, or type sweep.ray.address=null to use this machine"
            ) from error


def _perform(number: int, run: PlannedRun, queue: Any, directory: str) -> Outcome:
    from fnll.sweep.perform import perform

    require(
        os.path.isdir(directory), f"this node has no folder {directory}; start the sweep in one that all nodes share"
    )
    os.chdir(directory)
    return perform(run, lambda event: queue.put((number, event)), spare_core=False)


def _import_ray() -> tuple[ModuleType, ModuleType]:
    try:
        import ray
        from ray.util import queue
    except ImportError as error:
        raise UserError("sweep.launcher=ray needs the package ray; pip install 'fnll[ray]'") from error
    return ray, queue
