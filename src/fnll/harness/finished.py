"""A finished run, made again from its folder: what it was, and the state it ended in."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from fnll.errors import UserError
from fnll.harness.checkpoint import Checkpoints
from fnll.harness.config import Request, compose
from fnll.harness.prepare import Run, prepare
from fnll.harness.run_folder import RunFolder
from fnll.harness.tally import Tally
from fnll.harness.verdicts import Verdict, judge
from fnll.system.files import read_json


def reopen(folder: Path, words: Sequence[str] = ()) -> Run:
    """The run in `folder`, composed from the command that it notes; `words` say where its data lie now.

    The folder may be anybody's: nothing in it is executed, and a run that comes out different is refused.
    """
    if not RunFolder(folder).finished:
        raise UserError(f"there is no finished run in {folder}; give a run folder, as `fnll run` prints it at the end")
    try:
        command = shlex.split(str(read_json(folder / "manifest.json")["command"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / 'manifest.json'} cannot be read ({error})") from None
    run = prepare(_request(command, words))
    if run.run_id != folder.resolve().name:
        raise UserError(
            f"{folder} holds run {folder.resolve().name}, and its command gives {run.run_id}: the data, the settings "
            "or fnll have changed since. Run it again, or name its data: dataset.file=FILE or dataset.root=DIR"
        )
    return run


def verdict_of(run: Run, folder: Path) -> Verdict:
    """The verdict of a finished run."""
    restored = Checkpoints(folder / "checkpoint", run.run_id).load()
    if restored is None:
        raise UserError(f"{folder / 'checkpoint'} is missing or damaged; run the command again after deleting {folder}")
    return judge(run, restored.snapshot, Tally(run.scenario, restored.notes))


def _request(command: Sequence[str], words: Sequence[str]) -> Request:
    """The words after `fnll run`, with the later ones in their place."""
    folders = [Path(word.partition("=")[2]) for word in command if word.startswith("--config-dir=")]
    later = {word.partition("=")[0] for word in words}
    kept = [word for word in command[2:] if not word.startswith("--") and word.partition("=")[0] not in later]
    return compose([*kept, *words], folders)
