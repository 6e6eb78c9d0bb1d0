"""`fnll run`: one run, with all of Hydra's own flags."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape

from fnll.cli.progress import RunBar, verdict
from fnll.cli.waiting import waiting
from fnll.errors import UserError
from fnll.harness.choices import CONFIG_NAME, GROUPS, config_dir, options
from fnll.harness.config import Request, check_choices, compose, in_new_words, papers_words, request_of, store_of
from fnll.harness.hydra_versions import VERSION_BASE, register_plugins
from fnll.harness.known import finished
from fnll.harness.mistakes import MISTAKES, explain
from fnll.harness.status import warnings_in
from fnll.system.collecting import collecting_rarely, sparing_what_is_there


def main(argv: Sequence[str]) -> int:
    """Hand the words to Hydra; its errors come back as messages of ours."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise instead of printing and exiting with 1
    argv = in_new_words(argv)
    extra = extra_config_dirs(argv)
    mistakes: list[UserError] = []

    def task(cfg: DictConfig) -> float | None:
        try:
            return _run(cfg, extra)
        except (UserError, *MISTAKES) as error:  # raised here, Hydra would print a message of its own above ours
            mistakes.append(error if isinstance(error, UserError) else explain(error, extra))
            return None

    if any(word in ("--info", "-i") or word.startswith("--info=") for word in argv):
        hydras = logging.getLogger("hydra")  # its answer is a debug message
        hydras.setLevel(logging.DEBUG)
        hydras.addHandler(logging.StreamHandler(sys.stdout))
    check_choices(argv, extra)
    if extra or any("hydra" in word for word in argv):  # ours are known to name nothing that Hydra would call
        compose([word for word in argv if "=" in word and not word.startswith("-")], extra)
    before = sys.argv
    sys.argv = ["fnll run", *papers_words(argv, extra)]
    try:
        for group in GROUPS:
            options(group, extra)
        register_plugins()
        hydra.main(**VERSION_BASE, config_path=str(config_dir()), config_name=CONFIG_NAME)(task)()
    except MISTAKES as error:
        raise explain(error, extra) from None
    finally:
        sys.argv = before
    if mistakes:
        raise mistakes[0]
    return 0


def _run(cfg: DictConfig, config_dirs: Sequence[Path]) -> float | None:
    request = request_of(cfg, config_dirs=config_dirs)
    summary = finished(request)
    if summary is None:
        return _execute(request)
    for notice in warnings_in(store_of(request.cfg) / summary["run_id"]):
        Console(highlight=False).print(f"[yellow]![/] {escape(notice['text'])}", soft_wrap=True)
    return _tell(request, summary, known=True)


def _execute(request: Request) -> float | None:
    console = Console(stderr=False, highlight=False)
    with ExitStack() as before_training:
        before_training.enter_context(waiting("preparing the run ..."))
        before_training.enter_context(collecting_rarely())
        # Late: Lightning and scikit-learn take seconds to import; --help, --cfg and a misspelt word need not wait.
        from fnll.harness.execute import ask, execute
        from fnll.harness.loggers import watchers
        from fnll.harness.prepare import prepare
        from fnll.harness.warned import listening

        logging.captureWarnings(True)
        with listening(lambda text, _: console.print(f"[yellow]![/] {escape(text)}", soft_wrap=True)) as warned:
            mirrors = watchers(request)  # first: a mistake in them shows before data is read
            run = prepare(request)
            ask(run)  # now: a run that is declined leaves nothing behind, as other mistakes
            before_training.close()
            folder = Path(request.cfg.runs_dir) / run.run_id
            known = (folder / "summary.json").exists()
            with sparing_what_is_there():
                summary = execute(run, [RunBar(console), *mirrors], warned=warned)
            return _tell(request, summary, known=known)


def _tell(request: Request, summary: dict[str, Any], *, known: bool) -> float | None:
    """Say how a run ended and where it lies; returns what a Hydra sweeper may optimise."""
    console, run_id = Console(highlight=False), summary["run_id"]
    if known:
        console.print(
            f"{run_id} is finished already; nothing to do (delete its folder to compute it again)", soft_wrap=True
        )
    console.print(verdict(summary), soft_wrap=True)
    console.print(f"run folder: {store_of(request.cfg) / run_id}", soft_wrap=True)
    accuracy: float | None = summary["test/accuracy"]["last10"]
    return accuracy


def extra_config_dirs(argv: Sequence[str]) -> list[Path]:
    """The folders given by Hydra's `--config-dir`."""
    found = []
    for i, word in enumerate(argv):
        if word in ("--config-dir", "-cd") and i + 1 < len(argv):
            found.append(Path(argv[i + 1]))
        elif word.startswith("--config-dir="):
            found.append(Path(word.partition("=")[2]))
    return found
