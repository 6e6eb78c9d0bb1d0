"""Worker processes: the numbers of `Serial`, and nothing left behind, whatever happens to a worker."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fnll.errors import UserError
from fnll.executors import Pool, Serial
from fnll.executors.agenda import WorkerDiedError
from fnll.types import Call

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs" / "executor"
sys.path.insert(0, str(HERE))  # multiprocessing tells workers where their parent looks for modules

pytestmark = pytest.mark.usefixtures("fork_server")

from executor_jobs import (  # noqa: E402
    EVERYONE,
    SIZES,
    Odd,
    assert_same,
    call,
    flat,
    initial,
    round_of_calls,
    scenario,
)  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(scenario(), workers=2) as pool:
        yield pool


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_are_those_of_serial_bit_for_bit(workers: int) -> None:
    calls = round_of_calls(EVERYONE)
    expected = Serial(scenario()).map(calls)
    with Pool(scenario(), workers=workers) as pool:
        assert_same(pool.map(calls), expected)
        assert_same(pool.map(calls[::-1]), expected[::-1])


def test_results_do_not_depend_on_what_a_worker_did_before(pool: Pool) -> None:
    serial = Serial(scenario())
    for t in range(3):
        calls = round_of_calls(EVERYONE, t)
        assert_same(pool.map(calls), serial.map(calls))
        assert_same(pool.map(calls[2:3]), serial.map(calls[2:3]))


def test_an_empty_map_and_an_empty_client(pool: Pool) -> None:
    assert pool.map([]) == []
    (update,) = pool.map(round_of_calls([1]))
    assert (update.client, update.size) == (1, 0)


def test_messages_of_every_kind_come_back(pool: Pool) -> None:
    message = {
        "bool": torch.tensor([True, False]),
        "uint8": torch.arange(5, dtype=torch.uint8),
        "float64": torch.rand(3, dtype=torch.float64),
        "bfloat16": torch.rand(3).to(torch.bfloat16),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "turned": torch.rand(3, 4).t(),
        "number": 0.1,
        "text": "ü",
        "nothing": None,
        "nested": {"a": {"b": torch.ones(2)}},
    }
    (update,) = pool.map([call(Odd().echo, 0, **message)])
    assert flat(update.report) == flat(message)


def test_received_tensors_share_storage_with_nothing(pool: Pool) -> None:
    first, second = pool.map([call(Odd().views, 0), call(Odd().views, 2)])
    assert first.weights is not None
    assert second.weights is not None
    assert first.weights["again"] is first.weights["base"]
    assert first.weights["column"].tolist() == [1, 5, 9]
    values = [update.weights[name] for update in (first, second) for name in ("base", "row", "column", "turned")]
    assert len({value.untyped_storage().data_ptr() for value in values}) == 8
    first.weights["base"].zero_()
    assert second.weights["base"].sum() == 66


def test_a_job_that_writes_into_its_message_or_data_harms_no_other_process() -> None:
    weights, world = initial(), scenario()
    before = flat(weights)
    with Pool(world, workers=2) as pool:
        pool.map([call(Odd().spoil, k, weights=weights) for k in (0, 2)])
        (update,) = pool.map([call(Odd().echo, 0, weights=weights)])
        assert flat(update.report["weights"]) == flat(weights) == before
        pool._workers.popitem()[1].end()
        pool._workers.popitem()[1].end()
        assert_same(pool.map(round_of_calls([2])), Serial(world).map(round_of_calls([2])))  # new workers, unspoilt data


@pytest.mark.parametrize("n", [1, 1 << 22])
def test_large_and_small_replies_take_turns(pool: Pool, n: int) -> None:
    updates = pool.map([call(Odd().large, k, n=n + k) for k in (0, 2, 4)])
    last = [(update.client, int(update.weights["w"][-1])) for update in updates if update.weights is not None]
    assert last == [(k, n + k - 1) for k in (0, 2, 4)]


def test_the_largest_clients_start_first_and_small_maps_need_few_workers(tmp_path: Path) -> None:
    with Pool(scenario(), workers=4) as pool:
        pool.map([call(Odd().who, 0)])
        assert len(pool._workers) == 1
    with Pool(scenario(), workers=1) as pool:
        updates = pool.map([call(Odd(str(tmp_path)).sleep, k, seconds=0) for k in range(len(SIZES))])
    started = {update.client: update.report["started"] for update in updates}
    assert sorted(started, key=lambda k: started[k]) == [5, 2, 4, 0, 3, 1]


def test_workers_have_their_parents_numerics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    before = torch.get_default_dtype(), torch.get_deterministic_debug_mode()
    torch.set_default_dtype(torch.float64)
    torch.set_deterministic_debug_mode("error")
    try:
        with Pool(scenario(), workers=1, threads=1) as pool:
            (update,) = pool.map([call(Odd().who, 0)])
    finally:
        torch.set_default_dtype(before[0])
        torch.set_deterministic_debug_mode(before[1])
    assert update.report["dtype"] == "torch.float64"
    assert update.report["deterministic"] == 2
    assert update.report["threads"] == 1
    assert update.report["directory"] == str(tmp_path)
    assert update.report["pid"] != os.getpid()


@pytest.mark.slow
def test_workers_started_by_spawn_give_the_same_numbers() -> None:
    calls = round_of_calls([2])
    with Pool(scenario(), workers=1, start_method="spawn") as pool:
        assert_same(pool.map(calls), Serial(scenario()).map(calls))


def test_a_job_that_kills_its_worker_is_done_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = initial()

    def calls(folder: str) -> list[Call]:
        Path(folder).mkdir()
        return [call(Odd(folder).die_once, k, weights=weights, victims=(0, 5)) for k in EVERYONE]

    folder = tmp_path / "serial"
    survived = calls(str(folder))
    for k in (0, 5):
        (folder / f"died-{k}").touch()
    with Pool(scenario(), workers=2) as pool, caplog.at_level(logging.WARNING):
        assert_same(pool.map(calls(str(tmp_path / "pool"))), Serial(scenario()).map(survived))
        assert_same(pool.map(round_of_calls(EVERYONE)), Serial(scenario()).map(round_of_calls(EVERYONE)))
    assert "client 5, round 0, job die_once: its worker died (signal SIGKILL); the job is done again" in caplog.text


def test_workers_killed_between_maps_are_replaced() -> None:
    calls = round_of_calls(EVERYONE)
    with Pool(scenario(), workers=3) as pool:
        expected = pool.map(calls)
        for worker in pool._workers.values():
            os.kill(worker.process.pid, signal.SIGKILL)
        assert_same(pool.map(calls), expected)


@pytest.mark.parametrize(("job", "reason"), [("always_die", "signal SIGKILL"), ("leave", "exit code 3")])
def test_a_job_that_always_kills_its_worker_is_given_up_with_its_name(job: str, reason: str) -> None:
    with Pool(scenario(), workers=2) as pool:
        with pytest.raises(WorkerDiedError, match=rf"client 2, round 7, job {job}: .* died 3 times \({reason}\)"):
            pool.map([call(getattr(Odd(), job), 2, t=7)])
        assert_same(pool.map(round_of_calls([4])), Serial(scenario()).map(round_of_calls([4])))


def test_a_jobs_exception_is_raised_here_with_its_notes_and_traceback(pool: Pool) -> None:
    with pytest.raises(LookupError, match="no such thing at client 4") as caught:
        pool.map([call(Odd().fail, k, t=3, who=(4,)) for k in EVERYONE])
    assert caught.value.__notes__ == ["client 4, round 3, job fail"]
    assert "executor_jobs.py" in str(caught.value.__cause__)
    assert_same(pool.map(round_of_calls([4])), Serial(scenario()).map(round_of_calls([4])))


def test_of_several_failures_the_first_in_order_is_raised_as_serial_does(pool: Pool) -> None:
    for _ in range(3):
        with pytest.raises(LookupError, match="client 0"):
            pool.map([call(Odd().fail, k, who=(0, 2, 5)) for k in (3, 0, 5, 2, 4)])


def test_a_users_mistake_stays_one_and_odd_errors_keep_their_words(pool: Pool) -> None:
    with pytest.raises(UserError, match="type something else"):
        pool.map([call(Odd().mistake, 0)])
    with pytest.raises(RuntimeError, match="PickyError: 1 against 2"):
        pool.map([call(Odd().odd_error, 0)])


def test_what_cannot_be_sent_is_named(pool: Pool) -> None:
    with pytest.raises(TypeError, match="lock") as caught:
        pool.map([call(Odd().unsendable, 2, t=5)])
    assert "client 2, round 5, job unsendable: what it returned cannot be sent" in caught.value.__notes__[0]
    with pytest.raises((AttributeError, TypeError)) as caught_here:
        pool.map([call(Odd().echo, 2, t=5, f=lambda: None)])
    assert "client 2, round 5, job echo: its message cannot be sent" in caught_here.value.__notes__[0]


@pytest.mark.usefixtures("ctrl_c_works")
def test_interrupting_a_map_ends_the_busy_workers_and_spares_the_pool(tmp_path: Path) -> None:
    def asleep() -> list[int]:
        return [int(marker.stem) for marker in tmp_path.glob("*.worker")]

    with Pool(scenario(), workers=2) as pool:
        expected = pool.map(round_of_calls([2, 4]))
        ctrl_c = threading.Thread(
            target=lambda: eventually(lambda: len(asleep()) == 2) and os.kill(os.getpid(), signal.SIGINT)
        )
        ctrl_c.start()
        with pytest.raises(KeyboardInterrupt):
            pool.map([call(Odd(str(tmp_path)).sleep, k, seconds=200) for k in (0, 2)])
        ctrl_c.join()
        assert len(asleep()) == 2
        assert all(map(gone, asleep()))
        assert_same(pool.map(round_of_calls([2, 4])), expected)


def gone(pid: int) -> bool:
    """Whether a process has ended (or is about to be reaped)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def eventually(condition: Callable[[], bool], seconds: float = 120) -> bool:
    """Whether `condition` comes true; how long that takes depends on what else the machine does."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from executor_jobs import Odd, call, scenario
from fnll.executors import Pool, pool

pool.PRELOAD[:] = ["fnll.executors.worker"]  # enough for these jobs
if __name__ == "__main__":
    pool = Pool(scenario(), workers=2)
    for seconds in {seconds}:
        try:
            pool.map([call(Odd({folder!r}).sleep, k, seconds=seconds) for k in (0, 2)])
        except KeyboardInterrupt:
            pass
"""


@contextmanager
def script(folder: Path, seconds: list[float]) -> Iterator[subprocess.Popen[str]]:
    """A program with a pool that sleeps in two workers, and forgets to close it."""
    file = folder / "script.py"
    file.write_text(SCRIPT.format(here=str(HERE), folder=str(folder), seconds=seconds))
    command = [sys.executable, str(file)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as parent:
        try:
            yield parent
        except BaseException:
            parent.kill()  # or leaving this block would wait for a program that sleeps
            raise


@pytest.mark.usefixtures("ctrl_c_works")
def test_no_worker_outlives_ctrl_c_or_the_death_of_the_parent(tmp_path: Path) -> None:
    def workers() -> list[int]:
        return [int(mark.stem) for mark in tmp_path.glob("*.worker")]

    shared = shared_files()
    with script(tmp_path, [600, 600]) as parent:
        assert eventually(lambda: len(workers()) == 2)
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to everyone in the foreground
        assert eventually(lambda: len(workers()) == 4)
        assert sum(map(gone, workers())) == 2
        parent.kill()
        _, errors = parent.communicate()
    assert eventually(lambda: all(map(gone, workers())))
    assert shared_files() <= shared
    assert errors == ""


@pytest.mark.slow
def test_a_program_that_ends_without_closing_leaves_nothing_behind(tmp_path: Path) -> None:
    shared = shared_files()
    with script(tmp_path, [0]) as parent:
        _, errors = parent.communicate()
    assert (parent.returncode, errors) == (0, "")
    assert all(gone(int(mark.stem)) for mark in tmp_path.glob("*.worker"))
    assert shared_files() <= shared


def shared_files() -> set[str]:
    """What torch and multiprocessing put into shared memory; others (browsers, Ray) use it at the same time."""
    folder = Path("/dev/shm")
    return {path.name for kind in ("torch_*", "psm_*", "fnll*") for path in folder.glob(kind)}


def test_closing_and_forgetting_leave_nothing_behind() -> None:
    def state() -> tuple[set[str], int]:
        return shared_files(), len(os.listdir("/dev/fd"))

    with Pool(scenario(), workers=2) as pool:
        pool.map(round_of_calls([2, 4]))  # the fork server runs from now on
    gc.collect()
    before = state()
    closed, forgotten = Pool(scenario(), workers=2), Pool(scenario(), workers=2)
    closed.map(round_of_calls([2, 4]))
    forgotten.map(round_of_calls([2, 4]))
    pids = [worker.process.pid for pool in (closed, forgotten) for worker in pool._workers.values()]
    closed.close()
    closed.close()
    del forgotten, pool
    gc.collect()
    assert len(pids) == 4
    assert all(gone(pid) for pid in pids if pid is not None)
    assert state() == before
    with pytest.raises(RuntimeError, match="closed"):
        closed.map([])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "executor.workers must be a whole number of at least 1, got 0"),
        ({"workers": 1.5}, "executor.workers must be a whole number"),
        ({"threads": 0}, "executor.threads must be a whole number from 1 to 1024"),
        ({"start_method": "fork"}, "executor.start_method must be forkserver, spawn or null, got 'fork'"),
        ({"devices": ["cuda:0"]}, "executor.devices must be of the same type as device=cpu"),
    ],
)
def test_bad_settings_say_what_to_type(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Pool(scenario(), **settings)
    assert message in str(caught.value)


def test_too_many_workers_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Pool(scenario(), workers=10_000):
        pass
    assert "10000 workers with 1 threads each share" in caplog.text


@pytest.mark.parametrize(("name", "kind"), [("serial", Serial), ("pool", Pool)])
def test_the_configs_make_the_executors(name: str, kind: type) -> None:
    executor = instantiate(OmegaConf.load(CONFIGS / f"{name}.yaml"))(scenario=scenario(), device=torch.device("cpu"))
    assert isinstance(executor, kind)
    executor.close()
