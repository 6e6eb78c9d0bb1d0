"""Mirrors of a run's records through Lightning's loggers. `metrics.jsonl` is the source; no mirror is read back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.loggers import Logger
from omegaconf import OmegaConf

from fnll.errors import UserError
from fnll.harness.config import Request
from fnll.harness.observer import Progress
from fnll.harness.prepare import Run, made
from fnll.harness.run_folder import RunFolder
from fnll.harness.secrets import without_secrets
from fnll.system.files import plain_name, remove_folder

TAKEN = ("checkpoint", "lock", "wandb")  # in a run's folder; its other files have a dot in their names
GIVEN = ("save_dir", "name", "version")  # settings of Lightning's loggers that the run decides


def watchers(request: Request) -> list[Progress]:
    """The loggers that a config asks for; `logger=[wandb,csv]` asks for two."""
    found: list[Progress] = []
    taken = set(TAKEN)
    for name, node in (request.cfg.logger or {}).items():
        watcher = made(node, f"logger.{name}")
        if isinstance(watcher, Mirror):
            watcher.check(f"logger.{name}", taken)
            taken.add(watcher.folder.casefold())  # each empties its folder when it starts
        found.append(watcher)
    return found


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """The part of a row that a curve can show."""
    return {k: v for k, v in row.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def settings(run: Run, folder: RunFolder) -> dict[str, Any]:
    """The resolved config and what identifies the run."""
    config: Any = without_secrets(OmegaConf.to_container(run.cfg), run.request.hidden)  # type: ignore[arg-type]
    config.pop("logger", None)
    identity = {"run_id": folder.run_id, "fingerprint": run.scenario.fingerprint}
    return {**config, "choices": run.request.choices, **identity}


@dataclass
class Mirror:
    """A local logger (TensorBoard, CSV). At the start it is made anew from `metrics.jsonl`, so that a resume fits."""

    logger: Callable[..., Logger]  # called with save_dir, name and version
    folder: str  # its place in the run's folder

    def check(self, key: str, taken: Collection[str] = TAKEN) -> None:
        """Refuse a place outside the run's folder, or one that is taken there: the mirror deletes what it finds."""
        plain_name(f"{key}.folder", self.folder, f"type for example {key}.folder=curves", taken)
        options: dict[str, object] = getattr(self.logger, "keywords", {})
        if options.get("sub_dir") is not None:  # TensorBoard's, below the folder
            plain_name(f"{key}.logger.sub_dir", options["sub_dir"], f"type for example {key}.logger.sub_dir=part")
        for name in GIVEN:
            if name in options:
                raise UserError(
                    f"{key}.logger.{name}={options[name]} would be lost, since the run decides it; leave it out, and "
                    f"type for example {key}.folder=curves for another folder in the run's own"
                )

    def start(self, run: Run, folder: RunFolder) -> None:
        self.check("logger")
        remove_folder(folder.path / self.folder)
        self.sink = self.logger(save_dir=folder.path, name="", version=self.folder)
        self.sink.log_hyperparams(settings(run, folder))
        for row in folder.rows():
            self.step(row, [], 0)

    def step(self, row: dict[str, Any], facts: list[dict[str, Any]], rounds: int) -> None:
        self.sink.log_metrics(numbers(row), step=row["step"])
        self.sink.save()

    def finish(self, summary: dict[str, Any]) -> None:
        self.sink.finalize("success")

    def abort(self) -> None:
        """The run stopped early: keep what there is."""
        self.sink.finalize("failed")
