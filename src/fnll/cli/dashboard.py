"""`fnll dashboard`: the W&B workspace as code: accuracy, detection, correction and cost, by method over seeds."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb
from requests.utils import get_netrc_auth

from fnll.errors import UserError
from fnll.harness.metrics import GROUPS, METRICS
from fnll.system.files import write_file

OUT = Path("dashboard.json")
SECTIONS = tuple(dict.fromkeys(group.section for group in GROUPS.values()))
PANELS = {  # section → title → key; one panel for every key that runs record
    section: {m.title: m.key for m in METRICS.values() if m.recorded and m.group.section == section}
    for section in SECTIONS
}


def main(argv: Sequence[str]) -> int:
    """Save the workspace online; write it to a file where nobody is logged in."""
    args = _parser().parse_args(argv)
    board = kept(args.file, args.entity, args.project) if args.file else workspace(args.entity, args.project)
    text = json.dumps(json.loads(board._to_model().model_dump_json(by_alias=True)), indent=2) + "\n"
    if args.print:
        print(text, end="")
        return 0
    if not (os.environ.get("WANDB_API_KEY") or get_netrc_auth(wandb.Settings().base_url)):
        _write(args.out, text)
        print(_offline(board, args.out, args.entity, args.project))
        return 0
    if not args.entity:
        raise UserError("fnll dashboard needs to know whose project it is; type --entity NAME")
    print(board.save().url)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fnll dashboard",
        description="Build a W&B workspace for runs made with logger=wandb: curves by method, averaged over seeds.",
        epilog="Where nobody is logged in to W&B, the workspace is written to a file, which --file reads again.",
    )
    parser.add_argument("--project", default="fnll")
    parser.add_argument("--entity", default="", help="W&B user or team; needed online")
    parser.add_argument("--out", type=Path, default=OUT, help="where to write it offline (default: %(default)s)")
    parser.add_argument("--file", type=Path, help="take it from a file that was written before, and perhaps edited")
    parser.add_argument("--print", action="store_true", help="print it as JSON, and do nothing else")
    return parser


def _write(path: Path, text: str) -> None:
    try:
        write_file(path, text)
    except OSError as error:
        raise UserError(f"--out {path}: cannot write there ({error.strerror or error})") from error


def _offline(board: Any, path: Path, entity: str, project: str) -> str:
    sections = ", ".join(f"{section.name} ({len(section.panels)} panels)" for section in board.sections)
    words = ["fnll", "dashboard", "--file", str(path), "--entity", entity or "NAME", "--project", project]
    return (
        f"Nobody is logged in to W&B here, so the dashboard was written to {path}: {sections}.\n"
        "To have it in your project, once its runs are uploaded (`wandb sync`):\n"
        f"  wandb login\n  {shlex.join(words)}"
    )


def kept(path: Path, entity: str, project: str) -> Any:
    """A workspace from a file, for another owner or project."""
    _, workspaces = _packages()
    view = workspaces.internal.View
    try:
        model = view.model_validate_json(path.read_text(encoding="utf-8"))
        model.entity, model.project = entity, project
        return workspaces.Workspace._from_model(model)
    except OSError as error:
        raise UserError(f"--file {path}: cannot read it ({error.strerror or error})") from error
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"--file {path} is no dashboard that `fnll dashboard` wrote ({first})") from error


def workspace(entity: str, project: str) -> Any:
    """Sections of line plots over `step`, one line per method with its range over seeds."""
    reports, workspaces = _packages()
    sections = [
        workspaces.Section(
            name=section,
            is_open=section == "Accuracy",
            panels=[
                reports.LinePlot(title=title, x="step", y=[key], groupby_aggfunc="mean", groupby_rangefunc="minmax")
                for title, key in panels.items()
            ],
        )
        for section, panels in PANELS.items()
    ]
    runs = workspaces.RunsetSettings(groupby=[workspaces.Metric("Group"), workspaces.Metric("JobType")])
    return workspaces.Workspace(entity=entity, project=project, name="fnll", sections=sections, runset_settings=runs)


def _packages() -> tuple[Any, Any]:
    try:
        import wandb_workspaces.reports.v2.interface as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError:
        raise UserError("fnll dashboard needs one more package; type: pip install 'fnll[dashboard]'") from None
    return reports, workspaces
