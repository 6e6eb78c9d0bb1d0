"""The tiny world that most tests of whole runs train in, and a kill in the middle of a run.

Of two equal keys Hydra takes the later, so a test that needs more of something says only that after these words.
"""

from fnll.harness.composer import Composer

DATA = ["dataset=synthetic", "dataset.samples=120", "dataset.test_samples=60", "dataset.classes=4", "dataset.size=4"]
TINY = [  # a run of it takes a fraction of a second; each test adds its rounds
    *(*DATA, "model=mlp", "model.hidden=[8]", "num_clients=6", "local.epochs=1"),
]

compose = (
    Composer()
)  # for tests of other things: what Hydra gives (test_known holds it to that), in a seventh of its time


class PowerCutError(Exception):
    """The power cut."""


class PowerCut:
    """Watches a run and stops it, as a kill would, when it has been evaluated `after` times."""

    def __init__(self, after: int) -> None:
        self.left = after

    def start(self, run, folder):
        pass

    def step(self, row, facts, rounds):
        self.left -= 1
        if self.left == 0:
            raise PowerCutError

    def finish(self, summary):
        pass

    def abort(self):
        pass
