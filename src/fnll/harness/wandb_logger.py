"""Runs mirrored to Weights & Biases. A module of its own: whoever does not ask for it need not import wandb."""

from __future__ import annotations

import logging
import os
import shlex
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import wandb
from lightning.pytorch.loggers import WandbLogger
from pydantic import Field
from requests.utils import get_netrc_auth

from fnll.harness.loggers import numbers, settings
from fnll.harness.prepare import Run
from fnll.harness.provenance import made_with
from fnll.harness.run_folder import RunFolder
from fnll.scenario.file import save
from fnll.scenario.file_format import about
from fnll.settings import check_fields
from fnll.system.files import refuse_links_out, remove_file

log = logging.getLogger(__name__)


@dataclass
class Wandb:
    """Weights & Biases: offline without an account, one stable id per run, `step` as the x axis."""

    project: str
    entity: str | None
    mode: Literal["auto", "online", "offline", "disabled"]  # auto: online where somebody is logged in
    tables_every: Annotated[int, Field(ge=1, description="evaluations between confusion matrices and client tables")]

    def __post_init__(self) -> None:
        check_fields(self, "logger.wandb")

    def start(self, run: Run, folder: RunFolder) -> None:
        refuse_links_out(folder.path / "wandb")  # W&B, which makes a new folder in it, would follow them
        choices = run.request.choices
        mode = os.environ.get("WANDB_MODE") or (self._found() if self.mode == "auto" else self.mode)
        wandb.setup(wandb.Settings(silent=True))  # before it warns of a setting of Lightning's, into a sweep's display
        self.sink = WandbLogger(
            save_dir=folder.path,
            project=self.project,
            entity=self.entity,
            id=folder.run_id,
            name=f"{run.request.name}-s{run.cfg.seed}",
            group=f"{choices.get('experiment', 'run')}/{run.scenario.origin}",
            job_type=run.request.name,
            resume="allow",  # the same id: a resumed run continues its curve
            mode=mode,  # not offline=True, by which Lightning sets WANDB_MODE for all later runs of a sweep's worker
            log_model=False,
            settings=wandb.Settings(console="off", silent=True, disable_git=True, disable_job_creation=True),
        )
        self.offline, self.seen = mode in ("offline", "dryrun"), 0  # two words of W&B for the same
        self.folders = f"{shlex.quote(str(folder.path.parent))}/*/wandb/offline-run-*"  # a resumed run has several
        self.sink.log_hyperparams(settings(run, folder))
        remote = self.sink.experiment
        remote.define_metric("step")
        remote.define_metric("*", step_metric="step")
        if not folder.rows():  # a resumed run has logged these
            remote.log({"step": 0, "clients": _clients(run)}, step=0)
            self._log_scenario(run, folder)

    def step(self, row: dict[str, Any], facts: list[dict[str, Any]], rounds: int) -> None:
        remote, self.seen = self.sink.experiment, self.seen + 1
        values: dict[str, Any] = {**numbers(row), "stage": row["stage"]}
        if self.seen % self.tables_every == 0 or row["step"] == rounds:
            values |= {f"tables/{fact['name']}": _table(fact) for fact in facts if isinstance(fact["value"], list)}
        remote.log(values, step=row["step"])

    def finish(self, summary: dict[str, Any]) -> None:
        remote = self.sink.experiment
        for name, value in summary.items():
            if isinstance(value, dict):
                remote.summary.update({f"{name}/{rule}": number for rule, number in value.items()})
            elif not name.startswith(("comm/", "time/")):
                remote.summary[name] = value
        self.close(0)
        if self.offline:  # a warning, since sweeps pass these on; the same text for all runs, since they do so once
            log.warning("W&B is offline; to upload the runs type: wandb sync %s", self.folders)

    def abort(self) -> None:
        """The run stopped early: mark it so, or the next run of a sweep would write into it."""
        self.close(1)

    def close(self, code: int) -> None:
        self.sink.experiment.finish(exit_code=code)

    def _log_scenario(self, run: Run, folder: RunFolder) -> None:
        """The scenario file as an artifact: equal files are one version to W&B, so a scenario is there once.

        Oracles and pooled data have none: they are made from the scenario that the other methods of their group log.
        """
        scenario = run.scenario
        if scenario.fingerprint != scenario.origin:
            return
        path = folder.path / "wandb" / f"scenario-{scenario.fingerprint}.npz"
        remove_file(path)  # of an attempt that was cut short
        save(path, run.dataset, scenario, run.truth, made_with(run.request))
        artifact = wandb.Artifact(path.stem, type="scenario", metadata=about(path))
        # As it lies in the run's folder: by default W&B keeps copies in the user's home.
        artifact.add_file(str(path), name="scenario.npz", policy="immutable", skip_cache=True)
        self.sink.experiment.log_artifact(artifact)

    @staticmethod
    def _found() -> str:
        known = os.environ.get("WANDB_API_KEY") or get_netrc_auth(wandb.Settings().base_url)
        return "online" if known else "offline"


def _clients(run: Run) -> wandb.Table:
    """One row per client: size, nominal and realised noise."""
    truth, sizes = run.truth, run.scenario.sizes
    rows = zip(range(len(sizes)), sizes, truth.nominal.tolist(), truth.realised.tolist(), strict=False)
    return wandb.Table(
        columns=["client", "samples", "nominal noise", "realised noise"], data=[list(row) for row in rows]
    )


def _table(fact: dict[str, Any]) -> wandb.Table:
    """A recorded list or matrix as a table."""
    value = fact["value"]
    if value and isinstance(value[0], list):
        return wandb.Table(columns=["row", "values"], data=[[i, str(part)] for i, part in enumerate(value)])
    return wandb.Table(columns=["client", fact["name"]], data=[[i, part] for i, part in enumerate(value)])
