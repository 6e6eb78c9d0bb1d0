"""Kills: of single runs, of their workers, and of sweeps, until each run gets to its end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from arena import EXECUTORS, TINY, Arena, Case, attack, attempt, awaited, fork, forked, workers

MOST_KILLS = 9  # of one run, before it may end
OPERATIONS = 30  # on files, about half of what a short run does: most attempts die, and some get to the end
ROUNDS = 12  # of the runs of a sweep: enough for every method
TYPED = 0.25  # of the sweeps are a command of their own; the others are forked, and need not import torch
PATIENCE = 120.0  # seconds without a new row, before the sweep is killed all the same


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


def kill_until_it_ends(arena: Arena, rng: random.Random, name: str, executor: str) -> None:
    case = Case(arena.next_method(name), executor)
    if not arena.expected(case).is_same(arena.expected(case._replace(executor="serial")), exact=True):
        arena.failures.append(f"{name}: {case} differs from executor=serial by itself")
    store = arena.new_store()
    run = arena.prepared(case, store)
    before = len(arena.failures)
    for _ in range(rng.randint(3, MOST_KILLS)):
        kind = rng.choice(["moment", "file", "worker"] if executor == "pool" else ["moment", "file"])
        if kind == "moment":
            code = forked(run, after=rng.uniform(0, arena.seconds[case]))
        elif kind == "file":
            code = forked(run, before=doomed(rng.randint(1, OPERATIONS), run.run_id))
        else:
            code, hit = without_a_worker(lambda: attempt(run), rng.uniform(0, arena.seconds[case]), rng)
            arena.tried[name] += hit
            arena.survived[name] += hit
        if code == 0:
            break
        if code != -signal.SIGKILL:
            arena.failures.append(f"{name}: {case} answers a kill with exit code {code} ({store})")
            return
        arena.tried[name] += 1
        arena.survived[name] += 1  # until the end says otherwise
    if (code := forked(run)) != 0:
        arena.failures.append(f"{name}: {case} does not get to its end, exit code {code} ({store})")
    else:
        arena.settle(name, case, store / run.run_id)
    if len(arena.failures) > before:
        arena.survived[name] -= 1
    else:
        shutil.rmtree(store)


def without_a_worker(body: Callable[[], int], after: float, rng: random.Random) -> tuple[int, bool]:
    """A process one of whose workers is killed, and that has to get to its end all the same; whether there was one."""
    pid = fork(body)
    time.sleep(after)
    hit = False
    if alive := workers():
        with suppress(ProcessLookupError):
            os.kill(rng.choice(alive), signal.SIGKILL)
            hit = True
    return awaited(pid), hit


@attack("SIGKILL serial", 12)
def serial(arena: Arena, rng: random.Random) -> None:
    kill_until_it_ends(arena, rng, "SIGKILL serial", "serial")


@attack("SIGKILL pool", 2)
def pool(arena: Arena, rng: random.Random) -> None:
    kill_until_it_ends(arena, rng, "SIGKILL pool", "pool")


@attack("SIGKILL sweep", 1)
def sweep(arena: Arena, rng: random.Random) -> None:
    """Four runs, two at a time: of two methods, with two seeds each."""
    name = "SIGKILL sweep"
    methods = [arena.next_method(name) for _ in range(2)]
    kill_sweep(arena, rng, name, [Case(m, "serial", seed, ROUNDS) for m in methods for seed in (0, 1)], "--jobs", "2")


@attack("SIGKILL sweep together", 1)
def together(arena: Arena, rng: random.Random) -> None:
    """Six runs in two bundles, each advanced together: of two methods, with three seeds each."""
    name = "SIGKILL sweep together"
    methods = [arena.next_method(name) for _ in range(2)]
    cases = [Case(m, "vectorised", seed, ROUNDS) for m in methods for seed in (0, 1, 2)]
    kill_sweep(arena, rng, name, cases, "sweep.together=6", "--jobs", "1")


def kill_sweep(arena: Arena, rng: random.Random, name: str, cases: Sequence[Case], *how: str) -> None:
    """Type a sweep again and again, killing it or one of its processes; in the end every run is there once."""
    store, total = arena.new_store(), sum(len(arena.expected(case).rows) for case in cases)
    methods = ",".join(dict.fromkeys(case.method for case in cases))
    seeds = ",".join(dict.fromkeys(str(case.seed) for case in cases))
    words = [*TINY, f"method={methods}", f"seed={seeds}", f"rounds={ROUNDS}", *EXECUTORS[cases[0].executor], *how]
    words.append(f"runs_dir={store}")
    before, left = len(arena.failures), rng.randint(3, 6)
    while left:
        code, kills = harassed(words, store, total, left, rng)
        left -= kills
        arena.tried[name] += kills
        arena.survived[name] += kills  # until the end says otherwise
        if code == 0 or (code == 1 and kills >= 2):  # 1: a run was given up after two dead processes
            break
        if code != -signal.SIGKILL:
            arena.failures.append(f"{name}: {methods} answers {kills} kills with exit code {code} ({store})")
            return
    if (code := awaited(start(words, store, typed=rng.random() < TYPED))) != 0:
        arena.failures.append(f"{name}: {methods} do not get to their end, exit code {code} ({store})")
    folders = [store / arena.prepared(case, store).run_id for case in cases]
    for extra in {path for path in store.glob("[!.]*") if path.is_dir()} - set(folders):
        arena.failures.append(f"{name}: {extra} was not asked for")
    for case, folder in zip(cases, folders, strict=True):
        arena.settle(name, case, folder)
    if len(arena.failures) > before:
        arena.survived[name] -= 1
    else:
        shutil.rmtree(store)


def harassed(words: Sequence[str], store: Path, total: int, most: int, rng: random.Random) -> tuple[int, int]:
    """A sweep whose processes are killed until it ends or dies; its exit code, and the kills."""
    pid, kills = start(words, store, typed=rng.random() < TYPED), 0
    while kills < most:
        aim, began = rng.randint(rows_in(store), total), time.monotonic()
        while rows_in(store) < aim and time.monotonic() - began < PATIENCE:
            if (code := ended(pid)) is not None:
                return code, kills
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        if (code := ended(pid)) is not None:
            return code, kills
        group = members(pid)
        for victim in rng.choice([[pid], group, [rng.choice(group)]]):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        kills += 1
        time.sleep(0.05)
        if (code := ended(pid)) is not None:
            return code, kills
    return awaited(pid), kills


def start(words: Sequence[str], store: Path, *, typed: bool) -> int:
    """`fnll sweep` in a process group of its own: as a command, or in a fork of this process."""

    def alone() -> None:
        os.setsid()
        said = os.open(f"{store}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)

    def body() -> int:
        if typed:
            os.execv(sys.executable, [sys.executable, "-m", "fnll", "sweep", *words])
        from fnll.cli.sweep import main

        return main(words)

    return fork(body, alone)


def members(pid: int) -> list[int]:
    """The processes of a sweep: its group, and the workers that the campaign's fork server has started for it."""
    found = set(workers())
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[2]) == pid:
                found.add(int(status.parent.name))
    return sorted(found)


def ended(pid: int) -> int | None:
    gone, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if gone else None


def rows_in(store: Path) -> int:
    """How far the runs of a store have come."""
    count = 0
    for path in store.glob("*/metrics.jsonl"):
        with suppress(OSError):
            count += path.read_bytes().count(b"\n")
    return count
