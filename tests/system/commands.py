"""`fnll` in a process of its own that is forked, not started: after the imports, which take seconds, nothing differs.

In a module of its own, because a forked child imports what it shall do by its module's name.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILE_OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate"}


@dataclass(frozen=True)
class Fate:
    """Death so many seconds after so many operations on files below a folder, however busy the machine is."""

    folder: str
    operations: int
    seconds: float

    def await_it(self) -> None:
        """Let it come to this process."""
        left = self.operations

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event not in FILE_OPERATIONS or not isinstance(arguments[0], (str, os.PathLike)):
                return
            if self.folder in Path(arguments[0]).parts:
                left -= 1
                if left == 0:
                    signal.setitimer(signal.ITIMER_REAL, max(self.seconds, 1e-6))  # nobody handles SIGALRM: it kills

        sys.addaudithook(watch)


def forked(words: Sequence[object], cwd: Path, outputs: Path, fate: Fate | None) -> subprocess.CompletedProcess[str]:
    """Run `fnll` with words; its exit code and what it wrote, which is kept in the folder `outputs`."""
    texts = [str(word) for word in words]
    arguments = (texts, str(cwd), str(outputs), dict(os.environ), fate)
    process = multiprocessing.get_context("forkserver").Process(target=_main, args=arguments)
    process.start()
    process.join(300)
    if process.exitcode is None:
        process.kill()
        process.join()
    assert process.exitcode is not None
    return subprocess.CompletedProcess(
        texts, process.exitcode, (outputs / "stdout").read_text(), (outputs / "stderr").read_text()
    )


def _main(words: list[str], cwd: str, outputs: str, environment: dict[str, str], fate: Fate | None) -> None:
    from fnll.cli import main

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(os.path.join(outputs, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if fate is not None:
        fate.await_it()
    sys.exit(main(words))
