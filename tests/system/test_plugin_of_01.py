"""Out-of-tree methods as 0.1's scaffold and README wrote them: they run, or say in one line what is new."""

import pytest

from fnll.cli import main

METHOD = '''
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fnll.errors import require_at_least
from fnll.local import Classifier, LocalSpec
from fnll.methods.fedavg import FedAvg
from fnll.types import Batch, Client
from fnll.weights import Weights, squared_distance


@dataclass(frozen=True, kw_only=True)
class Pulled(FedAvg):
    """Nobody, "A method of 0.1", 2026."""

    privileges: ClassVar[tuple[str, ...]] = ()
    limit_laws: ClassVar[dict[str, dict[str, float]]] = {"mu = 0 is FedAvg": {"mu": 0.0}}
    short_run: ClassVar[dict[str, float]] = {}

    mu: float

    def __post_init__(self) -> None:
        require_at_least("method.mu", self.mu, 0, "mu weighs the pull")

    def select(self, state, fed):
        return fed.sample(self.cohort)

    def module(self, client: Client, weights: Weights) -> Classifier:
        return Near(self.net.load(weights), self.local, client.t, anchor=weights, mu=self.mu)


class Near(Classifier):
    per_client = ()

    def __init__(self, net: nn.Module, spec: LocalSpec, t: int, *, anchor: Weights, mu: float) -> None:
        super().__init__(net, spec, t)
        self.anchor, self.mu = anchor, mu

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if self.mu == 0:
            return loss
        return loss + self.mu / 2 * squared_distance(dict(self.net.named_parameters()), self.anchor)
'''
RUN = ["rounds=2", "num_clients=4", "dataset.subset=80", "local.epochs=1", "diagnostics_every=0"]


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    def write(source, name):
        (tmp_path / f"{name}.py").write_text(source)
        folder = tmp_path / "configs" / "method"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(f"_target_: {name}.Pulled\n_partial_: true\nmu: 0.1\n")
        return folder / f"{name}.yaml"

    monkeypatch.syspath_prepend(tmp_path)
    return write


def test_a_method_of_01_is_checked_and_run(plugin, tmp_path, capsys):
    path = plugin(METHOD, "method_of_01")
    assert main(["check", str(path), "--only", "limit_laws"]) == 0
    words = [
        "--allow=method_of_01",
        "--config-dir",
        str(path.parents[1]),
        "method=method_of_01",
        f"runs_dir={tmp_path / 'runs'}",
        *RUN,
    ]
    assert main(["run", *words]) == 0, capsys.readouterr().err
    assert main(["run", *words, "executor=cohort"]) == 0, capsys.readouterr().err  # the executor's name of 0.1


def test_an_import_that_moved_is_told_its_new_home(plugin, tmp_path, capsys):
    path = plugin(
        METHOD.replace("from fnll.types import", "from fnll.noisy import min_max\nfrom fnll.types import"), "moved_01"
    )
    words = [
        "--allow=moved_01",
        "--config-dir",
        str(path.parents[1]),
        "method=moved_01",
        f"runs_dir={tmp_path / 'runs'}",
        *RUN,
    ]
    assert main(["run", *words]) == 2
    assert "fnll.noisy is fnll.tools since 0.2" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
