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


def refused(words: list[str], config_dirs: tuple[Path, ...] = ()) -> str | None:
    """What is said about a run that cannot be prepared; None if it can."""
    try:
        prepare(compose([*ONCE, *words], config_dirs))
    except UserError as error:
        return str(error)
    return None


class Campaign:
    """Tries what hypothesis makes up, all of it: what goes wrong is collected, each kind once, and told in the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tried, self.refused = folder, 0, 0
        self.failures: dict[str, object] = {}

    def attempt(self, case: object, words: list[str], config_dirs: tuple[Path, ...] = ()) -> None:
        """Composing and preparing a run either works or ends in a sentence; nothing is written."""
        self.tried += 1
        try:
            told = refused(words, config_dirs)
        except Exception as error:
            self.failures.setdefault(f"{type(error).__name__}: {error}"[:200], case)
            return
        self.refused += told is not None
        if told is not None and (len(told) <= 10 or "full_key" in told):
            self.failures.setdefault(f"no sentence: {told}", case)
        for path in self.folder.iterdir():
            self.failures.setdefault(f"left behind: {path}", case)

    def settle(self) -> None:
        print(f"{self.tried} tried, {self.refused} refused with a sentence, {len(self.failures)} kinds of failures")
        assert not self.failures


def mutations(share: int = 1) -> settings:
    """How many; FNLL_FUZZ is set by `make fuzz`."""
    examples = int(os.environ.get("FNLL_FUZZ", "60")) // share
    return settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
def test_mutated_command_lines_end_in_a_sentence(here):
    campaign = Campaign(here)

    @mutations()
    @given(st.lists(WORDS.map("".join), min_size=1, max_size=3))
    def mutated(words: list[str]) -> None:
        campaign.attempt(words, words)

    mutated()
    campaign.settle()


@pytest.mark.slow
def test_mutated_yamls_end_in_a_sentence(here, tmp_path_factory):
    campaign, folder = Campaign(here), tmp_path_factory.mktemp("configs")
    (folder / "method").mkdir()
    text = "_target_: fnll.methods.fedprox.FedProx\n_partial_: true\nmu: 0.1\nform: half_squared\n"

    @mutations(2)
    @given(st.integers(0, len(text)), st.integers(0, 12), st.text(max_size=6))
    def mutated(start: int, length: int, new: str) -> None:
        content = (text[:start] + new + text[start + length :]).encode("utf-8", "surrogatepass")
        (folder / "method" / "mine.yaml").write_bytes(content)
        campaign.attempt(content, ["method=mine"], (folder,))

    mutated()
    campaign.settle()
