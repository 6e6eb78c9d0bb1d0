"""`fnll dashboard`: the W&B workspace as code: accuracy, detection, correction and cost, by method over seeds."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

import wandb
from requests.utils import get_netrc_auth

from fnll.errors import UserError
from fnll.harness.metrics import GROUPS, METRICS

SECTIONS = tuple(dict.fromkeys(group.section for group in GROUPS.values()))
PANELS = {  # section → title → key; one panel for every key that runs record
    section: {m.title: m.key for m in METRICS.values() if m.recorded and m.group.section == section}
    for section in SECTIONS
}


def main(argv: Sequence[str]) -> int:
    """Save the workspace online; print it where nobody is logged in."""
    parser = argparse.ArgumentParser(
        prog="fnll dashboard",
        description="Build a W&B workspace for runs made with logger=wandb: curves by method, averaged over seeds.",
        epilog="Without a W&B account the workspace is printed as JSON, so that it can be read and kept.",
    )
    parser.add_argument("--project", default="fnll")
    parser.add_argument("--entity", default="", help="W&B user or team; needed online")
    parser.add_argument("--print", action="store_true", help="print it even when logged in")
    args = parser.parse_args(argv)
    board = workspace(args.entity or "entity", args.project)
    if args.print or not (os.environ.get("WANDB_API_KEY") or get_netrc_auth(wandb.Settings().base_url)):
        print(json.dumps(json.loads(board._to_model().model_dump_json(by_alias=True)), indent=2))
        return 0
    if not args.entity:
        raise UserError("fnll dashboard needs to know whose project it is; type --entity NAME")
    print(board.save().url)
    return 0


def workspace(entity: str, project: str) -> Any:
    """Sections of line plots over `step`, one line per method with its range over seeds."""
    try:
        import wandb_workspaces.reports.v2.interface as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError:
        raise UserError("fnll dashboard needs one more package; type: pip install 'fnll[dashboard]'") from None
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
