"""What a run warns of is in its folder, once each, however often and wherever it is said."""

from __future__ import annotations

import io
import json
import logging
import warnings
from pathlib import Path

import pytest

from fnll.executors.agenda import Agenda, Answer
from fnll.executors.worker import HEARD
from fnll.harness.config import compose
from fnll.harness.execute import execute
from fnll.harness.prepare import prepare
from fnll.harness.status import warnings_in
from fnll.harness.warned import Warned, listening
from fnll.sweep.display import Plain, summarise
from fnll.sweep.events import Ending, Outcome, Said
from fnll.sweep.grid import PlannedRun
from fnll.sweep.perform import perform
from fnll.system.notices import Notice, warn_once
from tiny import TINY

FOUR = [*TINY, "num_clients=4", "rounds=2", "diagnostics_every=0", "noise=none"]
FEW = "only 4 clients: too few for methods that fit a mixture over clients (FedCorr, FedNoRo)"
log = logging.getLogger("fnll.methods.test")


def texts(folder: Path) -> list[str]:
    return [notice["text"] for notice in warnings_in(folder)]


def test_a_run_keeps_what_scene_warns_of(tmp_path, capsys):
    experiment = prepare(compose([*FOUR, f"runs_dir={tmp_path}"]))
    told: list[str] = []
    with listening(lambda text, about: told.append(text)) as warned:
        execute(experiment, warned=warned)
    assert texts(tmp_path / experiment.run_id) == told == [FEW]
    assert warnings_in(tmp_path / experiment.run_id)[0]["logger"] == "fnll.scenario.card"
    assert capsys.readouterr().err == ""  # whoever is told prints it as it likes
    again = Warned()
    execute(experiment, warned=again)  # finished: only read
    assert list(again.found) == [FEW]


def test_each_is_kept_once_and_survives_a_resume(tmp_path):
    with listening() as first:
        log.warning("before the folder is known")
        first.keep_in(tmp_path, {})
        for _ in range(3):
            log.warning("the same")
    with (tmp_path / "warnings.jsonl").open("a") as file:
        file.write('{"logger": "fnll.torn')  # by a kill
    with listening() as second:
        second.keep_in(tmp_path, {})
        log.warning("the same")
        log.warning("another\n  one")
    assert texts(tmp_path) == ["before the folder is known", "the same", "another one"]
    assert all(json.loads(line) for line in (tmp_path / "warnings.jsonl").read_text().splitlines())


def test_what_the_machinery_says_is_told_but_not_kept(tmp_path):
    told = []
    with listening(lambda text, _: told.append(text)) as warned:
        warned.keep_in(tmp_path, {})
        logging.getLogger("fnll.executors.agenda").warning("a worker died")
        logging.getLogger("fnll.harness.config").warning("no paper has settings")
    assert told == list(warned.found) == ["a worker died", "no paper has settings"]
    assert texts(tmp_path) == ["no paper has settings"]  # a killed and resumed run has the folder of another


def test_plugins_count_and_others_do_not(tmp_path):
    config = {"method": {"_target_": "mine.Better", "usual": {"_target_": "yours.Other"}}}
    with listening() as warned:
        warned.keep_in(tmp_path, config)
        for name in ("mine.better", "yours", "torch.something", "fnll"):
            logging.getLogger(name).warning("by %s", name)
        logging.getLogger("fnll").info("no warning")
    assert texts(tmp_path) == ["by mine.better", "by yours", "by fnll"]


def test_pythons_own_warnings_count_by_their_file():
    with listening() as warned, warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        try:
            warnings.warn_explicit("of ours", UserWarning, "/somewhere/fnll/methods/x.py", 3)
            warnings.warn_explicit("of others", UserWarning, "/somewhere/torch/x.py", 3)
        finally:
            logging.captureWarnings(False)
    assert list(warned.found) == ["UserWarning: of ours"]


def test_where_nobody_is_told_it_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with listening():
        log.warning("read me")
    assert capsys.readouterr().err == "read me\n"


def test_what_a_person_is_told_is_not_printed_a_second_time(monkeypatch):
    printed = io.StringIO()
    screen = logging.StreamHandler(printed)
    monkeypatch.setattr(logging.getLogger(), "handlers", [screen])
    told: list[str] = []
    with listening(lambda text, about: told.append(text)):
        log.warning("of ours")
        logging.getLogger("others").warning("of others")
    log.warning("afterwards")
    assert told == ["of ours"]
    assert printed.getvalue() == "of others\nafterwards\n"


def test_every_run_of_a_process_is_told_again():
    for _ in range(2):
        with listening() as warned:
            warn_once(log, "a fallback")
            warn_once(log, "a fallback")
        assert list(warned.found) == ["a fallback"]


def test_workers_bring_their_warnings_home():
    HEARD.handle(logging.makeLogRecord({"name": "fnll.tools.x", "levelno": logging.WARNING, "msg": "in a worker"}))
    notices = HEARD.take()
    assert notices == (Notice("fnll.tools.x", "in a worker"),)
    assert HEARD.take() == ()
    with listening() as warned:
        agenda = Agenda([], [])
        for _ in range(2):  # two workers, one fallback
            agenda.settle(0, Answer(None, notices))  # type: ignore[arg-type]
    assert warned.found["in a worker"]["logger"] == "fnll.tools.x"


def job(seed: int, *words: str) -> PlannedRun:
    return PlannedRun((*FOUR, f"seed={seed}", *words), "fedavg", seed=str(seed))


def test_a_sweep_says_it_at_the_start_and_in_its_summary(tmp_path):
    events: list[object] = []
    outcomes = {j: perform(j, events.append) for j in (job(0, f"runs_dir={tmp_path}"),)}
    assert events[0] == Said(FEW, FEW)  # before the run begins
    known = perform(next(iter(outcomes)), events.append)
    assert (known.kind, known.warnings) == (Ending.KNOWN, (FEW,))
    assert f"warning: {FEW} (fedavg seed 0)" in summarise(outcomes, 1.0)


def test_a_summary_names_the_runs_of_a_warning():
    some = Outcome(Ending.FINISHED, warnings=("odd",))
    lines = summarise({job(i): some if i < 5 else Outcome(Ending.FINISHED) for i in range(6)}, 1.0)
    assert lines[-1] == "warning: odd (fedavg seed 0, fedavg seed 1, fedavg seed 2 and 2 more)"
    assert summarise({job(0): some, job(1): some}, 1.0)[-1] == "warning: odd (all runs)"


@pytest.mark.parametrize("second", [Said("text of seed 1", "odd"), Said("text of seed 0", "odd"), Said("odd")])
def test_a_warning_that_differs_by_seed_is_shown_once(second):
    class Console:
        def __init__(self) -> None:
            self.lines: list[str] = []

        def print(self, text: str, **_: object) -> None:
            self.lines.append(text)

    console = Console()
    plain = Plain(console, 2)  # type: ignore[arg-type]
    plain.show(job(0), Said("text of seed 0", "odd"))
    plain.show(job(1), second)
    assert console.lines == ["fedavg seed 0: text of seed 0"]
