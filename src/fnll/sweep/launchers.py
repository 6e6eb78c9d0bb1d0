"""Where the runs of a sweep are done."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fnll.errors import UserError, nearest, require_integer
from fnll.harness.config import compose
from fnll.sweep.conductor import Launcher
from fnll.sweep.grid import PlannedRun
from fnll.system.files import can_write
from fnll.system.processes import usable_cores

STACKING = "fnll.executors.vectorised.Vectorised"  # the executor whose runs gain from company
NAMES = ("local", "submitit", "ray")


def launcher_of(
    settings: Mapping[str, Any], runs: Sequence[PlannedRun], at_once: int | None, runs_dir: Path
) -> Launcher:
    """The launcher that `sweep.launcher` names; `at_once` is --jobs, which only this machine needs."""
    name = settings["launcher"]
    require_integer("sweep.together", settings["together"], 1, "runs that one process advances together")
    if name == "local":
        from fnll.sweep.machine import LocalLauncher

        processes, spare_core, together = shared_out(settings, runs, at_once)
        return LocalLauncher(processes, spare_core=spare_core, together=together)
    if name == "submitit":
        from fnll.sweep.slurm import Submitit

        return Submitit(settings["submitit"], runs_dir, len(runs))
    if name == "ray":
        from fnll.sweep.ray_tasks import RayLauncher

        return RayLauncher(settings["ray"], len(runs))
    raise UserError(unknown_launcher(name))


def unknown_launcher(name: object) -> str:
    """The sentence about a launcher that does not exist."""
    return f"sweep.launcher={name} is not known; {nearest(str(name), NAMES)}"


def shared_out(settings: Mapping[str, Any], runs: Sequence[PlannedRun], at_once: int | None) -> tuple[int, bool, int]:
    """How this machine does the runs: processes, whether cores are left over, and runs together in each process."""
    from fnll.sweep.machine import room_for

    executors = {tuple(word for word in run.words if word.lstrip("+~").startswith("executor")): run for run in runs}
    configs = [compose(run.words, run.config_dirs).cfg for run in executors.values()]
    cores = usable_cores()
    processes, spare_core = room_for(configs, min(at_once or cores, len(runs)), cores)
    if any(cfg.executor._target_ != STACKING for cfg in configs):
        return processes, spare_core, 1
    return processes, spare_core, min(settings["together"], math.ceil(len(runs) / processes))


def check_store(runs_dir: Path) -> None:
    """Refuse a store that cannot be written before anything is started."""
    try:
        can_write(runs_dir)
    except OSError as error:
        raise UserError(
            f"cannot write to {runs_dir}: {error.strerror or error}; choose another folder with runs_dir=DIR"
        ) from None
