"""A cluster that loses a machine, and a batch system that kills a job: the sweep ends with the same numbers."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from stores import contents, rows_in

from fnll import cli
from fnll.harness.config import compose
from fnll.harness.execute import execute
from fnll.harness.prepare import prepare
from tiny import TINY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for the processes of a node in /proc"),
]

WORDS = [*TINY, "rounds=40", "diagnostics_every=0", "device=cpu", "checkpoint_seconds=0"]
PATIENCE = 240.0  # seconds for Ray to start, or for runs to get somewhere, on a busy machine


class Node:
    """A machine of the cluster: what `ray start` starts, in a process group of its own."""

    def __init__(self, *words: str, log: Path) -> None:
        ray = Path(sys.executable).with_name("ray")
        size = ["--num-cpus=1", "--object-store-memory=100000000", "--block", "--disable-usage-stats"]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [ray, "start", *words, *size], start_new_session=True, stdout=file, stderr=subprocess.STDOUT
            )

    def works(self) -> bool:
        """Whether a run or a worker of an executor is there now."""
        return any(line.startswith((b"ray::_perform", b"ray::Actor")) for line in titles_below(self.process.pid))

    def pull_the_plug(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def titles_below(root: int) -> list[bytes]:
    """How the processes below `root` call themselves."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    found = []
    for pid in below:
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def wait_for(what: Callable[[], object], why: str, process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, f"waited in vain for {why}"
        assert process is None or process.poll() is None, f"it ended before {why}"
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Node]]:
    """A head and a worker on this machine, each with room for one run; the address, and the worker."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    nodes = [Node("--head", f"--port={port}", "--include-dashboard=false", log=tmp_path / "head.log")]
    try:
        wait_for(lambda: "Ray runtime started" in (tmp_path / "head.log").read_text(), "the head", nodes[0].process)
        nodes.append(Node(f"--address={address}", log=tmp_path / "worker.log"))
        wait_for(lambda: "Ray runtime started" in (tmp_path / "worker.log").read_text(), "a worker", nodes[1].process)
        assert not ray.is_initialized()
        yield address, nodes[1]
    finally:
        for node in reversed(nodes):
            node.pull_the_plug()


def undisturbed(store: Path, *words: str) -> Path:
    for seed in range(4):
        execute(prepare(compose([*WORDS, *words, f"seed={seed}", f"runs_dir={store}"])))
    return store


def command(name: str, *words: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "fnll", name, *WORDS, *words], stdout=file, stderr=subprocess.STDOUT
        )


def test_a_sweep_survives_the_loss_of_a_ray_node(tmp_path: Path, cluster: tuple[str, Node]) -> None:
    address, worker = cluster
    store, log = tmp_path / "runs", tmp_path / "said"
    words = ["seed=range(4)", "sweep.launcher=ray", f"sweep.ray.address={address}", f"runs_dir={store}"]
    process = command("sweep", *words, log=log)
    wait_for(lambda: rows_in(store) >= 3 and worker.works(), "runs on both nodes", process)
    heard = [line for line in titles_below(worker.process.pid) if b"_QueueActor" in line]
    assert not heard, "what the sweep hears its runs through must not be lost with a node"
    worker.pull_the_plug()
    assert process.wait(PATIENCE) == 0, log.read_text()
    assert contents(store) == contents(undisturbed(tmp_path / "whole"))


def test_a_run_survives_the_loss_of_a_ray_node(tmp_path: Path, cluster: tuple[str, Node]) -> None:
    address, worker = cluster
    store, log = tmp_path / "runs", tmp_path / "said"
    many = "rounds=250"  # the worker's actor must be there before the head's has done them all
    words = [many, "executor=ray", f"executor.address={address}", "executor.workers=2", f"runs_dir={store}"]
    process = command("run", *words, log=log)
    wait_for(lambda: rows_in(store) >= 3 and worker.works(), "rounds on both nodes", process)
    worker.pull_the_plug()
    assert process.wait(PATIENCE) == 0, log.read_text()
    (found,) = contents(store).values()
    execute(prepare(compose([*WORDS, many, f"runs_dir={tmp_path / 'whole'}"])))
    (expected,) = contents(tmp_path / "whole").values()
    assert (found["metrics"], found["weights"]) == (expected["metrics"], expected["weights"])


def test_a_sweep_survives_killed_jobs_of_the_batch_system(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    store, log = tmp_path / "runs", tmp_path / "said"
    how = ["sweep.launcher=submitit", "sweep.submitit.cluster=local", "sweep.submitit.runs_per_job=2"]
    process = command("sweep", "seed=range(4)", *how, "sweep.submitit.timeout_min=10", f"runs_dir={store}", log=log)
    wait_for(lambda: rows_in(store) >= 3, "the first rounds", process)
    for job in submitted(store):
        os.kill(job, signal.SIGKILL)
    assert process.wait(PATIENCE) == 0, log.read_text()
    assert len(list((store / ".submitit").glob("*_submitted.pkl"))) == 4, "two jobs, and two more for what was lost"
    assert contents(store) == contents(undisturbed(tmp_path / "whole"))
    assert cli.main(["verify", str(store)]) == 0


def submitted(store: Path) -> Iterator[int]:
    """The processes that do the jobs of a store."""
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = words.read_bytes()
            if b"submitit.core._submit" in line and str(store).encode() in line:
                yield int(words.parent.name)
