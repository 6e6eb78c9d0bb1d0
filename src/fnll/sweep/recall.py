"""What is known of a grid's runs without doing them, and mostly without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from fnll.errors import UserError
from fnll.harness.composer import Composer
from fnll.harness.config import store_of
from fnll.harness.known import finished
from fnll.harness.status import Status, status_in, warnings_in
from fnll.sweep.events import Ending, Outcome
from fnll.sweep.grid import PlannedRun


class Found(NamedTuple):
    """A run of a grid, as far as it is known before it is done."""

    run_id: str
    state: str  # new, unfinished, finished, declined or failed
    store: Path
    rounds: int


class Recall:
    """Answers for the runs of one grid that are finished already."""

    def __init__(self, config_dirs: Sequence[Path] = ()) -> None:
        self.compose = Composer(config_dirs)
        self._datasets: dict[str, Any] = {}

    def outcome(self, run: PlannedRun) -> Outcome | None:
        """What a finished run came to; None for any other, and where it cannot be told without doing the run."""
        try:
            request = self.compose(run.words)
            summary = finished(request)
        except UserError:  # the run itself says what is wrong, and records it
            return None
        if summary is None:
            return None
        detail = Status.DIVERGED if summary["diverged"] else ""
        heard = warnings_in(store_of(request.cfg) / summary["run_id"])
        warnings = tuple(dict.fromkeys(notice.get("about") or notice["text"] for notice in heard))
        return Outcome(Ending.KNOWN, detail, summary["test/accuracy"]["last10"], warnings=warnings)

    def status(self, run: PlannedRun) -> Found:
        """Run id and state of a run."""
        request = self.compose(run.words)
        store, rounds = store_of(request.cfg), int(request.cfg.rounds)
        if summary := finished(request):
            return Found(str(summary["run_id"]), Status.FINISHED, store, rounds)
        from fnll.harness.prepare import prepare  # late: torch takes seconds to import

        run_id = prepare(request, self.load).run_id
        state = status_in(store / run_id) if (store / run_id).exists() else "new"
        return Found(run_id, state, store, rounds)

    def load(self, node: DictConfig) -> Any:
        """The runs of a grid share few data sets."""
        from fnll.harness.prepare import loaded

        text = OmegaConf.to_yaml(node)
        if text not in self._datasets:
            self._datasets[text] = loaded(node)
        return self._datasets[text]
