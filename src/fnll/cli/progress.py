"""What a person sees during a run: one progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:  # torch takes seconds to import, and a finished run is only told
    from fnll.harness.prepare import Run
    from fnll.harness.run_folder import RunFolder

QUIET_SECONDS = 10  # plain lines come at most this often


class RunBar:
    """A progress bar for one run; a line from time to time where the output is not a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("accuracy {task.fields[accuracy]:.1%}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task: TaskID | None = None
        self.spoken = time.monotonic()

    def start(self, run: Run, folder: RunFolder) -> None:
        name, rounds = run.request.name, run.cfg.rounds
        done = [row["step"] for row in folder.rows()]
        self.console.print(
            f"{name} on {run.scenario.name}: {len(run.scenario.shards)} clients, "
            f"{run.cohort_size} a round, {rounds} rounds, scenario {run.scenario.fingerprint}, "
            f"run {folder.run_id}",
            soft_wrap=True,
        )
        if done:
            self.console.print(f"resuming after step {done[-1]}")
        self.bar.start()
        self.task = self.bar.add_task(name, total=rounds, completed=done[-1] if done else 0, accuracy=0.0)

    def step(self, row: dict[str, Any], facts: list[dict[str, Any]], rounds: int) -> None:
        assert self.task is not None
        self.bar.update(self.task, completed=row["step"], accuracy=row["test/accuracy"])
        if not self.console.is_terminal and time.monotonic() - self.spoken > QUIET_SECONDS:
            self.spoken = time.monotonic()
            self.console.print(f"step {row['step']}/{rounds}  accuracy {row['test/accuracy']:.1%}")

    def finish(self, summary: dict[str, Any]) -> None:
        self.bar.stop()

    def abort(self) -> None:
        self.bar.stop()


def verdict(summary: dict[str, Any]) -> str:
    """One line that says how a finished run ended."""
    accuracy = summary["test/accuracy"]
    if summary["diverged"]:
        best = "nothing" if accuracy["best"] is None else f"{accuracy['best']:.1%}"
        return f"diverged at step {summary.get('diverged_at', '?')}; best on test before that: {best}"
    kind = "agreement with held-out observed labels, which may be wrong" if summary.get("test_truth") else "accuracy"
    return (
        f"{kind}: last10 {accuracy['last10']:.2%}   last {accuracy['last']:.2%}   best on test {accuracy['best']:.2%}"
    )
