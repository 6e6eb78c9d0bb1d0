"""Every mistake of a user has a sentence: exit code 2, no traceback, nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mistakes import COMMANDS, RUN, Mistake

from fnll.cli import main
from fnll.errors import UserError
from fnll.harness.config import compose
from fnll.harness.prepare import prepare
from tiny import TINY

ONCE = [*TINY, "rounds=1", "eval.overlap=false"]


def cases(mistakes: list[Mistake], *start: str) -> list[object]:
    """Command lines, and what is said; those whose sentence the table does not know are for `make test-all`."""
    return [
        pytest.param([*start, *(words.split(" ") if words.strip() else [words])], told,
                     id=f"{start[:1]}{words[:60]}", marks=[] if told else pytest.mark.slow)
        for words, told in mistakes
    ]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a refused command says; its exit code is 2, or argparse's."""
    try:
        code = main(words)
    except SystemExit as end:  # argparse's, for the words of its options
        code = end.code
    printed = capsys.readouterr()
    assert code == 2, (code, printed.out[-300:], printed.err[-300:])
    assert "Traceback" not in printed.err
    return printed.err


def require_sentence(text: str) -> None:
    lines = text.strip().splitlines()
    assert lines, "it says nothing"
    assert len(lines[-1]) > 20, text
    for internal in ("full_key", "object_type", "omegaconf.", "hydra.errors", "Errno", "NoneType"):
        assert internal not in text, text


@pytest.mark.parametrize(("words", "told"), [*cases(RUN, "run", *ONCE), *cases(COMMANDS)])
def test_a_mistake_is_one_sentence(words, told, here, capsys):
    text = said(words, capsys)
    require_sentence(text)
    assert told in text.strip().splitlines()[-1]
    assert not list(here.iterdir()), "something was left behind"


def test_the_table_has_every_mistake_once():
    for rows in (RUN, COMMANDS):
        assert len(rows) == len({row.words for row in rows})


# --- whatever is mutated ----------------------------------------------------------------------------------------------

KEYS = [
    "rounds", "seed", "num_clients", "fraction", "eval_every", "noise.rho", "noise.tau", "local.lr", "local.epochs",
    "local.batch_size", "local.momentum", "dataset.samples", "dataset.classes", "dataset.validation", "model.hidden",
    "method", "noise", "partition", "partition.min_size", "executor", "executor.threads", "scenario.oracle", "eval",
    "eval.batch_size", "checkpoint_seconds", "precision", "device", "protocol", "logger", "preset", "model", "local",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        ["", "null", "true", "nan", "inf", "-1", "0", "1e9", "[]", "{}", "[1]", "{a: 1}", "x", "../x", "${x}"]
    ),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12),
    st.integers(-(10**9), 10**6).map(str),
    st.floats().map(str),
)
WORDS = st.tuples(
    st.sampled_from(["", "+", "++", "~"]), st.sampled_from(KEYS), st.sampled_from(["=", "", "==", "."]), VALUES
)


def survived(words: list[str], folder: Path) -> None:
    """Composing and preparing a run either works or ends in a sentence; nothing is written."""
    text = refused(words)
    assert text is None or (len(text) > 10 and "full_key" not in text)
    assert not list(folder.iterdir())


def refused(words: list[str], config_dirs: tuple[Path, ...] = ()) -> str | None:
    """What is said about a run that cannot be prepared; None if it can."""
    try:
        prepare(compose([*ONCE, *words], config_dirs))
    except UserError as error:
        return str(error)
    return None


def fuzz(folder: Path, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=False,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(WORDS.map("".join), min_size=1, max_size=3))
    def mutated(words: list[str]) -> None:
        survived(words, folder)

    mutated()


@pytest.mark.slow
def test_mutated_command_lines_end_in_a_sentence(here):
    fuzz(here, int(os.environ.get("FNLL_FUZZ", "60")))


@pytest.mark.slow
def test_mutated_yamls_end_in_a_sentence(here, tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")
    (folder / "method").mkdir()
    text = "_target_: fnll.methods.fedprox.FedProx\n_partial_: true\nmu: 0.1\nform: half_squared\n"

    @settings(
        max_examples=int(os.environ.get("FNLL_FUZZ", "60")) // 2,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, len(text)), st.integers(0, 12), st.text(max_size=6))
    def mutated(start: int, length: int, new: str) -> None:
        content = (text[:start] + new + text[start + length :]).encode("utf-8", "surrogatepass")
        (folder / "method" / "mine.yaml").write_bytes(content)
        told = refused(["method=mine"], (folder,))
        assert told is None or len(told) > 10
        assert not list(here.iterdir())

    mutated()
