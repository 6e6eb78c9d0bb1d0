"""Where the attacks of a campaign take place: victims that are forked, what undisturbed runs come to, and the count."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any, NamedTuple

from fnll.harness.choices import options
from fnll.harness.config import compose
from fnll.harness.execute import execute
from fnll.harness.integrity import Condition, examine
from fnll.harness.prepare import Run, prepare
from fnll.harness.run_folder import DeclinedError

TINY = [
    "dataset=synthetic", "dataset.samples=120", "dataset.test_samples=60", "dataset.classes=4", "dataset.size=4",
    "model=mlp", "model.hidden=[8]", "num_clients=6", "local.epochs=1", "eval.overlap=false", "checkpoint_seconds=0",
]  # fmt: skip
EXECUTORS = {
    "serial": ["executor=serial"],
    "pool": ["executor=pool", "executor.workers=2"],
    "vectorised": ["executor=vectorised"],
}
TOLERANCE = 1e-3  # of test losses, where company may change the last bits: docs/speed.md states it
PRELOAD = ["fnll.sweep.runner", "fnll.executors.worker"]

Attack = Callable[["Arena", random.Random], None]
ATTACKS: dict[str, tuple[int, Attack]] = {}


def attack(name: str, weight: int) -> Callable[[Attack], Attack]:
    """Register an attack; `weight` is how often it is chosen."""

    def register(function: Attack) -> Attack:
        ATTACKS[name] = weight, function
        return function

    return register


class Case(NamedTuple):
    """A run that is attacked; without `rounds` it has as many as the method needs."""

    method: str
    executor: str = "serial"
    seed: int = 0
    rounds: int = 0


class Outcome(NamedTuple):
    """Everything a run comes to, but the time it took."""

    rows: list[dict[str, Any]]
    diagnostics: bytes
    weights: bytes

    @classmethod
    def of(cls, folder: Path) -> Outcome:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        timeless = [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]
        return cls(timeless, (folder / "diagnostics.jsonl").read_bytes(), (folder / "weights.safetensors").read_bytes())

    def is_same(self, other: Outcome, *, exact: bool) -> bool:
        if exact:
            return self == other
        if [row["step"] for row in self.rows] != [row["step"] for row in other.rows]:
            return False
        pairs = zip(self.rows, other.rows, strict=True)
        return all(abs(mine["test/loss"] - theirs["test/loss"]) <= TOLERANCE for mine, theirs in pairs)


@dataclass
class Arena:
    """What is known of undisturbed runs, and what came of the attacks."""

    root: Path
    runs: dict[Case, Run] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)  # runs that were followed to their end
    failures: list[str] = field(default_factory=list)
    whole: dict[Case, Outcome] = field(default_factory=dict)
    seconds: dict[Case, float] = field(default_factory=dict)
    reached: Counter[str] = field(default_factory=Counter)

    def prepared(self, case: Case, store: Path) -> Run:
        """A run; prepared once, and then given another store."""
        if case not in self.runs:
            words = [*TINY, f"method={case.method}", f"seed={case.seed}", *EXECUTORS[case.executor]]
            run = prepare(compose([*words, f"rounds={case.rounds or 6}"]))
            self.runs[case] = prepare(compose([*words, "rounds=12"])) if run.too_small() else run
        run = self.runs[case]
        cfg = run.asked.cfg.copy()
        cfg.runs_dir = str(store)
        return replace(run, asked=replace(run.asked, cfg=cfg))

    def undisturbed(self, case: Case) -> Path:
        """The folder of the run that nobody disturbs."""
        store = self.root / "whole" / case.executor
        run = self.prepared(case, store)
        if case not in self.whole:
            began = time.perf_counter()
            code = forked(run)
            self.seconds[case] = time.perf_counter() - began
            if code:
                raise RuntimeError(f"{case} does not end well by itself (exit code {code})")
            self.whole[case] = Outcome.of(store / run.run_id)
        return store / run.run_id

    def expected(self, case: Case) -> Outcome:
        """What the run comes to if nobody disturbs it."""
        self.undisturbed(case)
        return self.whole[case]

    def settle(self, attack: str, case: Case, folder: Path) -> None:
        """Compare what came of a disturbed run with what comes of an undisturbed one."""
        self.ends[attack] += 1
        if not (folder / "summary.json").exists():
            self.failures.append(f"{attack}: {case} is lost ({folder})")
            return
        finding = examine(folder, thorough=True)
        left = [path.name for path in folder.rglob("*.partial")]
        if not Outcome.of(folder).is_same(self.expected(case), exact=case.executor != "vectorised"):
            self.failures.append(f"{attack}: {case} ends with other numbers ({folder})")
        elif finding.state is not Condition.INTACT or left:
            self.failures.append(f"{attack}: {case} leaves {finding.reason} {left} ({folder})")
        else:
            shutil.rmtree(folder)

    def new_store(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.root))

    def next_method(self, attack: str) -> str:
        """The methods in turn, so that each has its share however short the campaign."""
        names = sorted(options("method"))
        self.reached[attack] += 1
        return names[(self.reached[attack] - 1) % len(names)]


def forked(run: Run, before: Callable[[], None] = lambda: None, after: float | None = None) -> int:
    """Do a run in a fork of this process; killed `after` so many seconds. Negative: the signal that ended it."""
    pid = fork(lambda: attempt(run), before)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    return awaited(pid)


def attempt(run: Run) -> int:
    try:
        execute(run)
    except DeclinedError:
        return 4
    except Exception as error:
        if not type(error).__module__.startswith("fnll"):
            raise
        return 2
    return 0


def fork(body: Callable[[], int], before: Callable[[], None] = lambda: None) -> int:
    """A process that ends with what `body` returns, or with 3 and a traceback."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None  # see `warm_up`
            before()
            code = body()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def awaited(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def warm_up() -> None:
    """Start a fork server that has imported everything; forks of this process use it as if it were their own."""
    get_context("forkserver").set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()


def workers() -> list[int]:
    """The processes that the fork server has started: those of the one victim there is at a time."""
    server = forkserver._forkserver._forkserver_pid
    return [int(pid) for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split()]
