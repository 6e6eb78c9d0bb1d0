"""What a run warned of, kept in its folder: a line on a terminal is gone when somebody reads the table."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fnll.harness.identity import plugins_of
from fnll.harness.status import WARNINGS, warnings_in
from fnll.scenario.card import card
from fnll.scenario.scenario import Dataset, Scenario, Truth
from fnll.system.files import open_own, write_atomic
from fnll.system.notices import exchange, forget

# Who warns of the machinery: a worker that died, a checkpoint that was damaged, an upload to come. It changes no
# number, and a run that was killed and resumed has the folder of one that was not; so it is said, but not kept.
MACHINERY = ("fnll.executors", "fnll.system", "fnll.harness", "fnll.cli", "fnll.sweep")
SETTINGS = "fnll.harness.config"  # except for what was asked for and could not be had
PYTHONS = "py.warnings"  # the logger that Python's own warnings go to once they are captured
remarks = logging.getLogger("fnll.scenario.card")

Tell = Callable[[str, str], None]  # what was warned of, and the same in words that other seeds share


class Warned(logging.Handler):
    """Hears the warnings of fnll and of the plugins that a run uses; each counts once."""

    def __init__(self, tell: Tell | None = None) -> None:
        super().__init__(logging.WARNING)
        self.tell = tell
        self.packages = {"fnll"}
        self.found: dict[str, dict[str, str]] = {}  # by their texts
        self.path: Path | None = None

    def emit(self, record: logging.LogRecord) -> None:
        ours = self._ours(record)
        alone = all(isinstance(handler, Warned) for handler in logging.getLogger().handlers)
        if alone and logging.lastResort and not (ours and self.tell):
            logging.lastResort.handle(record)  # where somebody listens, Python itself prints nothing
        if not ours:
            return
        text = " ".join(_message(record).split())
        if text in self.found:
            return
        about = getattr(record, "about", "")
        self.found[text] = {"logger": record.name, "text": text, **({"about": about} if about else {})}
        if self.path is not None and _lasting(record.name):
            with open_own(self.path, "a") as file:
                file.write(_line(self.found[text]))
        if self.tell is not None:
            self.tell(text, about or text)

    def leaves(self, record: logging.LogRecord) -> bool:
        """Whether a record is for others to print: what a person is told here would be read twice."""
        return record.levelno < self.level or not self._ours(record)

    def keep_in(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Write what was heard so far to a run's folder, and from now on everything; plugins of the run count, too."""
        self.packages |= set(plugins_of(config))
        self.recall(folder)
        self.path = folder / WARNINGS
        if kept := [_line(notice) for notice in self.found.values() if _lasting(notice["logger"])]:
            write_atomic(self.path, "".join(kept))

    def recall(self, folder: Path) -> None:
        """Count what earlier attempts at the run warned of."""
        self.found = {line["text"]: line for line in warnings_in(folder)} | self.found

    def _ours(self, record: logging.LogRecord) -> bool:
        if record.name == PYTHONS:
            source = record.getMessage().partition(": ")[0]  # FILE:LINE
            return any(f"/{package}/" in source or f"/{package}.py:" in source for package in self.packages)
        return record.name.split(".")[0] in self.packages


def _lasting(logger: str) -> bool:
    """Whether a warning says something about the result."""
    return logger == SETTINGS or not any(logger == name or logger.startswith(f"{name}.") for name in MACHINERY)


def _line(notice: Mapping[str, str]) -> str:
    return json.dumps(notice) + "\n"


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.name != PYTHONS:
        return text
    return re.sub(r"^.*?:\d+: ", "", text.splitlines()[0])  # without the place, and without the line of source below


@contextmanager
def listening(tell: Tell | None = None) -> Iterator[Warned]:
    """Hear what one run warns of, from its preparation to its end; `tell` passes it on to a person."""
    forget()
    warned = Warned(tell)
    root = logging.getLogger()
    screens = [one for one in root.handlers if type(one) is logging.StreamHandler] if tell else []
    for screen in screens:
        screen.addFilter(warned.leaves)
    root.addHandler(warned)
    try:
        yield warned
    finally:
        root.removeHandler(warned)
        for screen in screens:
            screen.removeFilter(warned.leaves)


class Ears:
    """What one of several runs in a process hears: its own warnings, each said once to it."""

    def __init__(self) -> None:
        self.handlers = list(logging.getLogger().handlers)
        self.said: set[tuple[str, str]] = set()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let whatever is logged meanwhile be heard by this run alone."""
        root = logging.getLogger()
        outside, root.handlers = root.handlers, self.handlers
        said = exchange(self.said)
        try:
            yield
        finally:
            self.handlers, root.handlers = root.handlers, outside
            self.said = exchange(said)


def warn_of(dataset: Dataset, scenario: Scenario, truth: Truth) -> None:
    """Say at the start of a run what `fnll scene` says about its scenario."""
    for remark in card(scenario, truth, dataset.class_names).remarks:
        remarks.warning("%s", remark.text, extra={"about": remark.about})
