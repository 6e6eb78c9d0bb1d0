"""Kill, fill, flip and damage runs for a given time, and count whether any number changes: `make chaos MINUTES=10`.

Victims are forked from a process that has imported everything and prepared the run, so that a kill costs what the run
itself costs. Half of the kills come at a random moment, half at a random operation on the run's files.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from rich.console import Console
from rich.table import Table

from fnll.harness.choices import options
from fnll.harness.config import compose
from fnll.harness.execute import execute
from fnll.harness.folder import DeclinedError
from fnll.harness.integrity import Condition, examine
from fnll.harness.prepare import Run, prepare

TINY = [
    "dataset=synthetic", "dataset.samples=120", "dataset.test_samples=60", "dataset.classes=4", "dataset.size=4",
    "model=mlp", "model.hidden=[8]", "num_clients=6", "local.epochs=1", "eval.overlap=false", "checkpoint_seconds=0",
]  # fmt: skip
EXECUTORS = {"serial": ["executor=serial"], "pool": ["executor=pool", "executor.workers=2"]}
DOUBTFUL = {"summary.json"}  # white space in it may change without changing what it says
NO_RESULTS = ("lock", "warnings.jsonl", "asked.json")  # notes that change no number and cost time at most
MOST_KILLS = 9  # of one run, before it may end
ATTACKS: dict[str, tuple[int, Callable[[Arena, random.Random], None]]] = {}


@dataclass
class Arena:
    """Where the attacks take place, and what came of them."""

    root: Path
    runs: dict[tuple[str, str], Run] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)  # runs that were followed to their end
    failures: list[str] = field(default_factory=list)
    whole: dict[str, tuple[object, ...]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    reached: Counter[str] = field(default_factory=Counter)

    def prepared(self, method: str, store: Path, executor: str = "serial") -> Run:
        """A run, with as many rounds as the method needs; prepared once, and then given another store."""
        if (method, executor) not in self.runs:
            words = [*TINY, f"method={method}", *EXECUTORS[executor]]
            run = prepare(compose([*words, "rounds=6"]))
            self.runs[method, executor] = prepare(compose([*words, "rounds=12"])) if run.too_small() else run
        run = self.runs[method, executor]
        cfg = run.asked.cfg.copy()
        cfg.runs_dir = str(store)
        return replace(run, asked=replace(run.asked, cfg=cfg))

    def reference(self, method: str) -> tuple[object, ...]:
        """What the run comes to if nobody disturbs it."""
        if method not in self.whole:
            run = self.prepared(method, self.root / "whole")
            began = time.perf_counter()
            code = forked(run)
            self.seconds[method] = time.perf_counter() - began
            if code:
                raise RuntimeError(f"{method} does not end well by itself (exit code {code})")
            self.whole[method] = outcome(self.root / "whole" / run.run_id)
        return self.whole[method]

    def settle(self, attack: str, method: str, folder: Path) -> None:
        """Compare what came of a disturbed run with what comes of an undisturbed one."""
        self.ends[attack] += 1
        finding = examine(folder, thorough=True)
        left = [path.name for path in folder.rglob("*.partial")]
        if outcome(folder) != self.reference(method):
            self.failures.append(f"{attack}: {method} ends with other numbers ({folder})")
        elif finding.state is not Condition.INTACT or left:
            self.failures.append(f"{attack}: {method} leaves {finding.reason} {left} ({folder})")
        else:
            shutil.rmtree(folder)


def outcome(folder: Path) -> tuple[object, ...]:
    """Everything a run comes to, but the time it took."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]
    return timeless, (folder / "diagnostics.jsonl").read_bytes(), (folder / "weights.safetensors").read_bytes()


def forked(run: Run, before: Callable[[], None] = lambda: None, after: float | None = None) -> int:
    """Do a run in a fork of this process; killed `after` so many seconds. Negative: the signal that ended it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            before()
            execute(run)
            code = 0
        except DeclinedError:
            code = 4
        except BaseException as error:
            code = 2 if type(error).__module__.startswith("fnll") else 3
            if code == 3:
                traceback.print_exc()
        finally:
            os._exit(code)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def doomed(operations: int, name: str) -> Callable[[], None]:
    """Die at an operation on a file of the run."""

    def arm() -> None:
        left = operations

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate") and name in str(arguments[0]):
                left -= 1
                if left <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)

    return arm


def limited(size: int) -> Callable[[], None]:
    """No file may become larger: what a full disk or a quota does."""

    def arm() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return arm


def attack(weight: int) -> Callable[[Callable[[Arena, random.Random], None]], Callable[[Arena, random.Random], None]]:
    """Register an attack; `weight` is how often it is chosen."""

    def register(function: Callable[[Arena, random.Random], None]) -> Callable[[Arena, random.Random], None]:
        ATTACKS[function.__name__.replace("_", " ")] = weight, function
        return function

    return register


def kill_until_it_ends(arena: Arena, rng: random.Random, name: str, executor: str) -> None:
    method = next_method(arena, name)
    arena.reference(method)
    store = Path(tempfile.mkdtemp(dir=arena.root))
    run = arena.prepared(method, store, executor)
    for _ in range(rng.randint(3, MOST_KILLS)):
        if rng.random() < 0.5:
            code = forked(run, after=rng.uniform(0, arena.seconds[method]))
        else:
            code = forked(run, before=doomed(rng.randint(1, 60), run.run_id))
        if code == 0:
            break
        if code != -signal.SIGKILL:
            arena.failures.append(f"{name}: {method} answers a kill with exit code {code} ({store})")
            return
        arena.tried[name] += 1
        arena.survived[name] += 1  # until the end says otherwise
    before = len(arena.failures)
    if (code := forked(run)) != 0:
        arena.failures.append(f"{name}: {method} does not get to its end, exit code {code} ({store})")
        return
    arena.settle(name, method, store / run.run_id)
    if len(arena.failures) > before:
        arena.survived[name] -= 1


def next_method(arena: Arena, name: str) -> str:
    """The methods in turn, so that each has its share however short the campaign."""
    names = sorted(options("method"))
    arena.reached[name] += 1
    return names[(arena.reached[name] - 1) % len(names)]


@attack(12)
def SIGKILL_serial(arena: Arena, rng: random.Random) -> None:
    kill_until_it_ends(arena, rng, "SIGKILL serial", "serial")


@attack(1)
def SIGKILL_pool(arena: Arena, rng: random.Random) -> None:
    kill_until_it_ends(arena, rng, "SIGKILL pool", "pool")


@attack(3)
def full_disk(arena: Arena, rng: random.Random) -> None:
    name, method = "full disk", next_method(arena, "full disk")
    arena.reference(method)
    store = Path(tempfile.mkdtemp(dir=arena.root))
    run = arena.prepared(method, store)
    arena.tried[name] += 1
    code = forked(run, before=limited(rng.choice([0, 100, 700, 1500, 3000, 6000, 12000])))
    before = len(arena.failures)
    if code not in (0, 2):
        arena.failures.append(f"{name}: {method} answers with exit code {code} ({store})")
    elif forked(run) != 0:
        arena.failures.append(f"{name}: {method} cannot be resumed ({store})")
    else:
        arena.settle(name, method, store / run.run_id)
    arena.survived[name] += len(arena.failures) == before


def harm(path: Path, rng: random.Random) -> str:
    """Damage a file in one of seven ways."""
    content = bytearray(path.read_bytes())
    kind = rng.choice(["bit", "bit", "bit", "cut", "empty", "zeros", "gone", "text", "swapped"])
    if kind == "bit" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[len(content) // 2 :]
    elif kind == "empty":
        content.clear()
    elif kind == "zeros":
        content[:] = bytes(len(content))
    elif kind == "text":
        content[:] = b"nonsense\n"
    elif kind == "swapped":
        lines = bytes(content).splitlines(keepends=True)
        content[:] = b"".join(lines[::-1])
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(content)
    return kind


@attack(3)
def damage_to_finished_runs(arena: Arena, rng: random.Random) -> None:
    """Every change of a finished run is noticed."""
    name, method = "damage to finished runs", next_method(arena, "damage to finished runs")
    arena.reference(method)
    (source,) = (arena.root / "whole").glob(f"{method}-*")
    folder = Path(tempfile.mkdtemp(dir=arena.root)) / source.name
    shutil.copytree(source, folder)
    path = rng.choice([path for path in sorted(folder.iterdir()) if path.is_file() and path.stat().st_size])
    before = path.read_bytes()
    kind = harm(path, rng)
    if (path.exists() and path.read_bytes() == before) or path.name in NO_RESULTS:
        return
    arena.tried[name] += 1
    finding = examine(folder, thorough=True)
    gone = path.name == "summary.json" and kind == "gone"  # then it is not finished, and the command repeats its end
    intact = path.name in DOUBTFUL and finding.state is Condition.INTACT
    same = intact and not gone and says_the_same(path, before)
    if finding.state is Condition.DAMAGED or gone or same:
        arena.survived[name] += 1
        shutil.rmtree(folder)
    else:
        arena.failures.append(f"{name}: {kind} of {path.name} of {method} is not noticed ({folder})")


def says_the_same(path: Path, before: bytes) -> bool:
    try:
        return json.loads(path.read_bytes()) == json.loads(before)
    except ValueError:
        return False


@attack(3)
def damage_to_unfinished_runs(arena: Arena, rng: random.Random) -> None:
    """A damaged run that is resumed ends with the same numbers."""
    name, method = "damage to unfinished runs", next_method(arena, "damage to unfinished runs")
    arena.reference(method)
    store = Path(tempfile.mkdtemp(dir=arena.root))
    run = arena.prepared(method, store)
    forked(run, before=doomed(rng.randint(40, 90), run.run_id))
    folder = store / run.run_id
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"]
    if not files or (folder / "summary.json").exists():
        return
    path = rng.choice(files)
    arena.tried[name] += 1
    kind = harm(path, rng)
    before = len(arena.failures)
    if (code := forked(run)) != 0:
        arena.failures.append(f"{name}: {kind} of {path.name}, {method} ends with exit code {code} ({store})")
    else:
        arena.settle(name, method, folder)
    arena.survived[name] += len(arena.failures) == before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kills", type=int, default=None, help="stop after so many kills, if that is earlier")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", action="store_true", help="say how far it has come")
    parser.add_argument("--only", default="", help="names of attacks, separated by commas")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    rng = random.Random(args.seed)
    chosen = {name: pair for name, pair in ATTACKS.items() if not args.only or name in args.only.split(",")}
    began, logged = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="fnll-chaos-", ignore_cleanup_errors=True) as root:
        os.environ["FNLL_CACHE"] = f"{root}/cache"
        arena = Arena(Path(root))
        while time.monotonic() - began < 60 * args.minutes:
            kills = arena.tried["SIGKILL serial"] + arena.tried["SIGKILL pool"]
            if args.kills and kills >= args.kills:
                break
            if args.log and (count := sum(arena.tried.values())) >= logged + 50:
                logged = count
                print(f"{count} attacks, {kills} kills, {len(arena.failures)} failures", file=sys.stderr, flush=True)
            (one,) = rng.choices(list(chosen), weights=[weight for weight, _ in chosen.values()])
            try:
                chosen[one][1](arena, rng)
            except Exception as error:  # of the campaign or of the code: either way somebody must look
                arena.failures.append(f"{one}: {type(error).__name__}: {error}")
                traceback.print_exc()
        show(arena, time.monotonic() - began)
    return int(bool(arena.failures))


def show(arena: Arena, seconds: float) -> None:
    table = Table("attack", "tried", "survived", "failed", "runs followed to the end", box=None, pad_edge=False)
    for name in ATTACKS:
        tried, survived = arena.tried[name], arena.survived[name]
        table.add_row(name, str(tried), str(survived), str(tried - survived), str(arena.ends[name] or "–"))
    console = Console(width=120, highlight=False)
    console.print(table)
    console.print(f"{len(arena.whole)} methods, {seconds / 60:.1f} minutes; failures: {len(arena.failures)}")
    for failure in arena.failures:
        console.print(failure, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
