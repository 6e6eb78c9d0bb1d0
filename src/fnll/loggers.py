"""Mirrors of a run's records through Lightning's loggers. `metrics.jsonl` is the source; no mirror is read back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.loggers import Logger
from omegaconf import OmegaConf

from fnll.config import Request
from fnll.experiment import Experiment, made
from fnll.observer import Progress
from fnll.records import RunFolder


def watchers(request: Request) -> list[Progress]:
    """The loggers that a config asks for; `logger=[wandb,csv]` asks for two."""
    return [made(node, f"logger.{name}") for name, node in (request.cfg.logger or {}).items()]


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """The part of a row that a curve can show."""
    return {k: v for k, v in row.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def settings(experiment: Experiment, folder: RunFolder) -> dict[str, Any]:
    """The resolved config and what identifies the run."""
    config: Any = OmegaConf.to_container(experiment.cfg)
    config.pop("logger", None)
    identity = {"run_id": folder.run_id, "fingerprint": experiment.scenario.fingerprint}
    return {**config, "choices": experiment.request.choices, **identity}


@dataclass
class Mirror:
    """A local logger (TensorBoard, CSV). At the start it is made anew from `metrics.jsonl`, so that a resume fits."""

    logger: Callable[..., Logger]  # called with save_dir, name and version
    folder: str  # its place in the run's folder

    def start(self, experiment: Experiment, folder: RunFolder) -> None:
        shutil.rmtree(folder.path / self.folder, ignore_errors=True)
        self.sink = self.logger(save_dir=folder.path, name="", version=self.folder)
        self.sink.log_hyperparams(settings(experiment, folder))
        for row in folder.rows():
            self.step(row, [], 0)

    def step(self, row: dict[str, Any], facts: list[dict[str, Any]], rounds: int) -> None:
        self.sink.log_metrics(numbers(row), step=row["round"])
        self.sink.save()

    def finish(self, summary: dict[str, Any]) -> None:
        self.sink.finalize("success")

    def abort(self) -> None:
        """The run stopped early: keep what there is."""
        self.sink.finalize("failed")
