"""Where the modules of 0.1 are now, for messages to plugins that still import them by their old names."""

from __future__ import annotations

MOVED = {  # both below `fnll`
    "allocator": "system.allocator",
    "bench.dimension": "bench.lid",
    "bench.grid": "bench.sweeps",
    "bench.worlds": "bench.subjects",
    "cache": "system.cache",
    "checkpoint": "harness.checkpoint",
    "commands.bench": "cli.bench",
    "commands.check": "cli.check",
    "commands.dashboard": "cli.dashboard",
    "commands.methods": "cli.methods",
    "commands.new": "cli.new",
    "commands.report": "cli.report",
    "commands.run": "cli.run",
    "commands.scene": "cli.scene",
    "commands.sweep": "cli.sweep",
    "config": "harness.config",
    "diagnostics": "harness.diagnostics",
    "display": "cli.progress",
    "evaluate": "harness.evaluate",
    "executors.cohort": "executors.vectorised",
    "experiment": "harness.prepare",
    "files": "system.files",
    "identity": "harness.identity",
    "loggers": "harness.loggers",
    "making": "harness.making",
    "manifest": "harness.manifest",
    "noisy": "tools",
    "observer": "harness.observer",
    "processes": "system.processes",
    "proximal": "tools.proximal",
    "records": "harness.run_folder",
    "report.example": "testing.example",
    "report.figures.style": "plotting.style",
    "report.grid": "report.cells",
    "report.palette": "plotting.palette",
    "run": "harness.execute",
    "scenario.annotator": "scenario.noise.annotator",
    "scenario.dealing": "scenario.partition.dealing",
    "scenario.h_idn": "scenario.noise.h_idn",
    "scenario.h_idn_official": "scenario.noise.h_idn_official",
    "scenario.label_maps": "scenario.noise.label_maps",
    "scenario.noise": "scenario.noise.models",
    "scenario.noise_official": "scenario.noise.official",
    "scenario.partition": "scenario.partition.partitions",
    "scenario.partition_official": "scenario.partition.official",
    "scenario.provenance": "harness.provenance",
    "sweep.job": "sweep.perform",
    "sweep.local": "sweep.machine",
    "sweep.ray": "sweep.ray_tasks",
    "sweep.worker": "sweep.runner",
    "torchvision_compat": "system.torchvision_compat",
    "wandb_logger": "harness.wandb_logger",
}


def new_home(module: str) -> str | None:
    """The present name of a module of 0.1, or None if it is where it was or never existed."""
    inside = module.removeprefix("fnll.")
    for length in range(inside.count(".") + 1, 0, -1):  # `noisy.mixture` is found by `noisy`
        head = ".".join(inside.split(".")[:length])
        if head in MOVED:
            return f"fnll.{MOVED[head]}{inside[len(head) :]}"
    return None
