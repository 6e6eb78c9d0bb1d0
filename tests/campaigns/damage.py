"""Full disks, flipped bits and damaged files: noticed, or put right by the next command."""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from arena import Arena, Case, attack, forked
from kills import doomed

from fnll.harness.integrity import Condition, examine

DOUBTFUL = {"summary.json"}  # white space in it may change without changing what it says
NO_RESULTS = ("lock", "warnings.jsonl", "asked.json")  # notes that change no number and cost time at most


def limited(size: int) -> Callable[[], None]:
    """No file may become larger: what a full disk or a quota does."""

    def arm() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return arm


@attack("full disk", 3)
def full_disk(arena: Arena, rng: random.Random) -> None:
    name, case = "full disk", Case(arena.next_method("full disk"))
    arena.expected(case)
    store = arena.new_store()
    run = arena.prepared(case, store)
    arena.tried[name] += 1
    code = forked(run, before=limited(rng.choice([0, 100, 700, 1500, 3000, 6000, 12000])))
    before = len(arena.failures)
    if code not in (0, 2):
        arena.failures.append(f"{name}: {case} answers with exit code {code} ({store})")
    elif forked(run) != 0:
        arena.failures.append(f"{name}: {case} cannot be resumed ({store})")
    else:
        arena.settle(name, case, store / run.run_id)
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


@attack("damage to finished runs", 7)
def damage_to_finished_runs(arena: Arena, rng: random.Random) -> None:
    """Every change of a finished run is noticed."""
    name, case = "damage to finished runs", Case(arena.next_method("damage to finished runs"))
    source = arena.undisturbed(case)
    folder = arena.new_store() / source.name
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
        arena.failures.append(f"{name}: {kind} of {path.name} of {case.method} is not noticed ({folder})")


def says_the_same(path: Path, before: bytes) -> bool:
    try:
        return json.loads(path.read_bytes()) == json.loads(before)
    except ValueError:
        return False


@attack("damage to unfinished runs", 4)
def damage_to_unfinished_runs(arena: Arena, rng: random.Random) -> None:
    """A damaged run that is resumed ends with the same numbers."""
    name, case = "damage to unfinished runs", Case(arena.next_method("damage to unfinished runs"))
    arena.expected(case)
    store = arena.new_store()
    run = arena.prepared(case, store)
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
        arena.failures.append(f"{name}: {kind} of {path.name}, {case} ends with exit code {code} ({store})")
    else:
        arena.settle(name, case, folder)
    arena.survived[name] += len(arena.failures) == before
