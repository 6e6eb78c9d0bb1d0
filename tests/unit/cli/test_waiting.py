"""Nobody waits without knowing what for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fnll.cli import main
from fnll.cli.waiting import waiting


def test_it_is_said_at_once_and_not_among_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("preparing 3 runs [fast] ..."):
        out, err = capsys.readouterr()
    assert (out, err) == ("", "preparing 3 runs [fast] ...\n")


def test_a_run_a_scene_and_a_dry_run_say_what_they_do_before_they_import_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["dataset=cifar10", f"dataset.root={tmp_path / 'none'}", f"runs_dir={tmp_path / 'runs'}"]
    said = {}
    for command, more in (("run", []), ("scene", []), ("sweep", ["--dry-run"])):
        main([command, *data, *more])
        said[command] = capsys.readouterr().err.splitlines()[0]
    assert said == {
        "run": "preparing the run ...",
        "scene": "making the scenario ...",
        "sweep": "preparing 1 run ...",
    }
