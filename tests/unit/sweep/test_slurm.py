"""What waits in a batch system's queue while `fnll` is updated."""

import pickle

from fnll.sweep.grid import PlannedRun
from fnll.sweep.slurm import SlurmBatch


def test_a_batch_queued_under_the_old_word_is_understood():
    runs = (PlannedRun(("seed=0",), "fedavg"),)
    old = SlurmBatch(runs, "progress.jsonl")
    old.jobs = vars(old).pop("runs")
    read = pickle.loads(pickle.dumps(old))
    assert vars(read) == vars(SlurmBatch(runs, "progress.jsonl"))
