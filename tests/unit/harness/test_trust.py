"""Whose code a config may name, and what a config takes from the environment is not written down."""

from __future__ import annotations

import sys

import pytest
from omegaconf import OmegaConf

from fnll.cli import main
from fnll.errors import UserError
from fnll.harness import trust
from fnll.harness.config import compose
from fnll.harness.loggers import settings
from fnll.harness.manifest import describe
from fnll.harness.prepare import prepare
from fnll.harness.run_folder import RunFolder
from fnll.sweep.grid import expand
from tiny import TINY

HOSTILE = [
    "os.system", "builtins.open", "builtins.exec", "torch.load", "numpy.load", "pandas.read_pickle", "joblib.load",
    "shutil.copy", "shutil.rmtree", "pathlib.Path.write_text", "torch.hub.load", "subprocess.Popen", "hydra.utils.call",
    "fnll.system.files.os.system", "fnll.system.files.write_atomic", "fnll.system.files.remove_folder",
    "fnll.harness.run_folder.RunFolder", "fnll.methods.fedrn.torch.load", "fnll.sweep.slurm.Submitit", "fnll.cli.main",
    "fnll.harness.execute.execute", "", "..", "os",
]  # fmt: skip


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    """Nobody is trusted yet, and nobody will be after the test."""
    monkeypatch.setattr(trust, "_allowed", set())


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of one's own that is not installed, and a config folder that names it."""
    (tmp_path / "mine_here.py").write_text(
        "import os\nfrom fnll.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    pass\n"
    )
    (tmp_path / "configs" / "method").mkdir(parents=True)
    (tmp_path / "configs/method/mine.yaml").write_text("_target_: mine_here.Mine\n_partial_: true\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "configs"
    sys.modules.pop("mine_here", None)


@pytest.mark.parametrize("target", HOSTILE)
@pytest.mark.parametrize("group", ["method", "executor"])
def test_a_config_cannot_name_what_it_likes(target, group):
    with pytest.raises(UserError, match=r"names .* neither a class of fnll|needs|no value|cannot read"):
        compose([f"{group}._target_={target}"])


@pytest.mark.parametrize("target", ["torch.load", "mine_here.Mine"])
def test_nor_can_a_folder_of_configs_or_something_deep_in_it(mine, target):
    (mine / "method/evil.yaml").write_text(
        f"_target_: fnll.methods.fedavg.FedAvg\n_partial_: true\nx: [{{a: {{_target_: {target}}}}}]\n"
    )
    with pytest.raises(UserError, match=rf"method.x\[0\].a names {target}, .* type --allow {target.split('.')[0]}"):
        compose(["method=evil"], [mine])


def test_packaged_targets_and_classes_of_ours_are_trusted():
    compose(["method._target_=fnll.methods.fedprox.FedProx", "+method.mu=1"])
    compose(["logger=csv"])
    compose(["noise=h_idn"])


def test_the_user_names_modules(mine):
    with pytest.raises(UserError, match="--allow mine_here"):
        compose(["method=mine"], [mine])
    assert trust.taken_from(["method=mine", "--allow", "mine_here", "--allow=b,c.d"]) == ["method=mine"]
    assert trust.allowed() == ("b", "c.d", "mine_here")
    request = compose(["method=mine"], [mine])
    assert "--allow=mine_here" in request.command
    (run,) = expand(["method=mine"], [mine]).runs
    assert run.allowed == ("b", "c.d", "mine_here")
    with pytest.raises(UserError, match=r"names mine_here\.os\.system"):
        compose(["method._target_=mine_here.os.system"])


@pytest.mark.parametrize(
    "text",
    [
        "hydra: {callbacks: {x: {_target_: builtins.open}}}",
        "hydra: {launcher: {_target_: os.system}}",
        "hydra: {sweeper: {_target_: torch.load}}",
        "hydra: {job_logging: {version: 1, handlers: {x: {(): builtins.open, file: x}}}}",
        "hydra: {hydra_logging: {version: 1, handlers: {x: {class: os.system}}}}",
    ],
)
def test_hydra_is_not_made_to_call_things_either(tmp_path, text, capsys, monkeypatch):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/evil.yaml").write_text(f"# @package _global_\n{text}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--config-dir", str(tmp_path), "experiment=evil"]) == 2
    assert "names" in capsys.readouterr().err


def test_values_of_the_environment_are_used_and_not_written_down(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_NAME", "s3cret")
    words = [
        *TINY, "rounds=1", f"runs_dir={tmp_path}", "logger=wandb", "logger.wandb.project=${oc.env:SECRET_NAME}",
        "logger.wandb.entity=x-${logger.wandb.project}",
    ]  # fmt: skip
    request = compose(words)
    assert request.cfg.logger.wandb.project == "s3cret"
    assert request.cfg.logger.wandb.entity == "x-s3cret"
    folder = RunFolder(tmp_path / "run")
    folder.open()
    describe(request, folder, "cpu")
    folder.close()
    written = (tmp_path / "run" / "config.yaml").read_text()
    assert "project: ${oc.env:SECRET_NAME}" in written
    assert "s3cret" not in "".join(path.read_text() for path in (tmp_path / "run").iterdir())
    monkeypatch.setenv("SAMPLES", "41")
    run = prepare(compose([*TINY, f"runs_dir={tmp_path}", "dataset.samples='${oc.decode:${oc.env:SAMPLES}}'"]))
    assert len(run.scenario.labels) == 41
    assert settings(run, folder)["dataset"]["samples"] == "${oc.decode:${oc.env:SAMPLES}}"


def test_the_data_folder_of_the_environment_is_not_written_down_and_changes_no_id(tmp_path, monkeypatch):
    monkeypatch.setenv("FNLL_DATA", "/home/somebody")
    request = compose(["dataset=mnist", f"runs_dir={tmp_path}"])
    folder = RunFolder(tmp_path / "run")
    folder.open()
    describe(request, folder, "cpu")
    folder.close()
    stored = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert OmegaConf.to_container(stored, resolve=False)["dataset"]["root"] == "${oc.env:FNLL_DATA,./data}"
