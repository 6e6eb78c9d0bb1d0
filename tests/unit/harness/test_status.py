"""What became of a run is seen by one rule, by whoever looks."""

import pytest

from fnll.harness.run_folder import RunFolder
from fnll.harness.status import MARKS, Status, mark_in, status_in
from fnll.sweep.events import Ending


@pytest.mark.parametrize("status", MARKS)
def test_a_mark_is_read_as_it_was_written_and_forgotten_by_the_next_attempt(tmp_path, status):
    folder = RunFolder(tmp_path)
    assert status_in(tmp_path) is Status.UNFINISHED
    folder.mark(status, {"reason": "why"})
    assert status_in(tmp_path) is status
    assert mark_in(tmp_path) == (status, tmp_path / MARKS[status])
    folder.unmark()
    assert (status_in(tmp_path), mark_in(tmp_path)) == (Status.UNFINISHED, None)


def test_the_file_of_earlier_versions_is_read_and_forgotten_too(tmp_path):
    (tmp_path / "skipped.json").write_text('{"reason": "why"}')
    assert status_in(tmp_path) is Status.DECLINED
    RunFolder(tmp_path).unmark()
    assert not list(tmp_path.iterdir())


def test_a_summary_outweighs_marks(tmp_path):
    folder = RunFolder(tmp_path)
    folder.mark(Status.FAILED, {"error": "first try"})
    folder.finish({}, diverged_at=None, rounds=1)
    assert status_in(tmp_path) is Status.FINISHED
    assert folder.finished


def test_sweeps_use_the_same_words():
    assert {Ending.FINISHED, Ending.DECLINED, Ending.FAILED} <= {status.value for status in Status}
