"""Every mistake of a user has a sentence: exit code 2, no traceback, nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fnll.cli import main
from fnll.errors import UserError
from fnll.harness import trust
from fnll.harness.config import compose
from fnll.harness.prepare import prepare
from tiny import TINY

ONCE = [*TINY, "rounds=1", "eval.overlap=false"]
RUN = [
    "rounds=99999999999999999999", "local.batch_size=99999999999999999999", "executor.threads=1000000",
    "model.hidden=[1000000000000]", "sweep.params=3", "sweep=3", "+sweep.nosuch=3", "paper.methods=3",
    "=3", "noise=5", "local=3", "eval=3", "noise=../method/fedavg", "runs_dir=" + "x" * 300,
    "executor=pool executor.devices=foo", "executor=pool executor.devices=[foo]", "executor._target_=os.system",
    "method=fedcorr method.usual=3", "method=fedcorr method.usual={a:1}", "model.width=1000000000",
    "noise=h_idn noise.annotator=null", "dataset.validation=0.9999", "logger=csv logger.csv.folder=null",
    "logger=csv logger.csv.folder=3", "~seed", "rounds==", "rounds=0", "rounds=-1", "rounds=1.5", "rounds=x",
    "rounds=true", "rounds=null", "seed=-1", "seed=x", "seed=null", "num_clients=0", "num_clients=1000",
    "num_clients=x", "fraction=0", "fraction=2", "fraction=x", "fraction=nan", "fraction=inf", "fraction=null",
    "eval_every=0", "eval_every=x", "eval.overlap=3", "eval.overlap=null", "eval.batch_size=0", "eval=null",
    "eval.nosuch=3", "+eval.nosuch=3", "nosuch=3", "+nosuch=3", "method=nosuch", "method=", "~method", "method=null",
    "checkpoint_seconds=-1", "checkpoint_seconds=x", "checkpoint_seconds=inf", "protocol=x", "precision=x",
    "precision=16-mixed", "device=x", "device=cuda:99", "device=3", "runs_dir=null", "runs_dir=3", "runs_dir=",
    "diagnostics_every=-1", "diagnostics_every=x", "diagnostics_samples=0", "noise.rho=2", "noise.rho=x",
    "noise.rho=nan", "noise.rho=null", "noise.tau=-1", "partition=shards partition.per_client=0",
    "partition=dirichlet partition.alpha=0", "partition=dirichlet partition.alpha=inf", "partition.min_size=0",
    "partition.min_size=1000", "local.lr=x", "local.lr=-1", "local.lr=nan", "local.lr=null", "local.epochs=0",
    "local.epochs=x", "local.batch_size=0", "local.batch_size=x", "local.momentum=-1", "local.momentum=x",
    "local.nosuch=1", "model.hidden=x", "model.hidden=[0]", "model.hidden=[-1]", "model.hidden=null",
    "model.hidden=[x]", "dataset.samples=0", "dataset.samples=x", "dataset.classes=0", "dataset.size=0",
    "dataset.size=x", "dataset.imbalance=inf", "dataset.imbalance=true", "dataset.imbalance=x", "dataset.subset=0",
    "dataset.subset=x", "dataset.validation=x", "dataset.validation=1", "dataset.validation=-1",
    "executor.threads=0", "executor.threads=x", "executor=pool executor.workers=0", "executor=pool executor.workers=x",
    "executor=pool executor.start_method=x", "executor=vectorised executor.chunk=0",
    "executor=vectorised executor.chunk=x",
    "executor=nosuch", "scenario.oracle=x", "scenario.pooled=x", "scenario=file", "scenario=file scenario.path=nowhere",
    "scenario=file scenario.path=3", "scenario=file scenario.path=/dev/null", "scenario=file scenario.path=.",
    "logger=nosuch", "logger=wandb logger.wandb.mode=x", "logger=wandb logger.wandb.tables_every=0",
    "logger=csv logger.csv.folder=..", "logger=csv logger.csv.folder=/tmp", "preset=nosuch", "experiment=nosuch",
    "method=fedprox method.mu=x", "method=fedprox method.mu=-1", "method=fedprox method.mu=null",
    "method=fedprox method.form=x", "method=fedrn method.eval_augment=3", "method=fedrn method.eval_augment=x",
    "method=fedcorr rounds=2", "method=fedavg method.nosuch=1", "+method.nosuch=1", "method.a.b=1",
    "method=[1]", "dataset=[1]", "noise={a:1}", "rounds=[1]", "rounds={a:1}", "seed=[0]", "rounds=${nosuch}",
    "rounds=${oc.env:NO_SUCH_VARIABLE}", "rounds=${rounds}", "runs_dir=${runs_dir}", "seed=0,1", "seed=range(3)",
    "hydra.run.dir=../../x", "hydra.nosuch=3", "method/x=3", "a=b=c", "'", "{", "[", "seed=[", "seed={", "seed='",
    "seed=\"", "\\", "seed=\\", "--nosuch", "--config-dir", "--config-dir=/nope", "-x", "", " ", "ünïcode=1",
    "seed=ü", "seed=1e999", "seed=1e5",
    "dataset=image_folder dataset.root=nowhere", "dataset=image_folder dataset.root=null",
    "dataset=image_folder dataset.root=3", "dataset=image_folder dataset.root=. dataset.mean=3",
    "dataset=mnist dataset.root=nowhere", "dataset=mnist dataset.root=null", "dataset=cifar10 dataset.root=nowhere",
    "dataset.flip=maybe", "dataset.streaming=maybe", "model=cifar_resnet18 model.pretrained=nowhere",
    "model.pretrained=nowhere", "logger=[csv,nosuch]", "num_clients=1e3",
]  # fmt: skip
OTHERS = [
    "sweep seed=range(1000000000)", "sweep sweep.params=3", "sweep sweep.cells=3", "sweep sweep.launcher=x",
    "sweep --config-dir /nope method=fedavg", "methods --config-dir /nope", "scene --config-dir /nope",
    "sweep --jobs 0 method=fedavg", "sweep --shard 3/2 method=fedavg", "sweep runs_dir=a,b", "sweep nosuch=1,2",
    "sweep method=nosuch", "sweep =3", "sweep seed=interval(0,1)", "sweep word", "sweep sweep.launcher=local,ray",
    "sweep noise=5", "sweep experiment=nosuch", "sweep sweep.submitit=3 sweep.launcher=submitit",
    "sweep sweep.launcher=submitit sweep.submitit.runs_per_job=0 sweep.submitit.cluster=local",
    "sweep sweep.launcher=submitit sweep.submitit.cluster=nosuch", "report", "report nowhere --out x",
    "report . --out x",
    "report . --out x --select nosuch", "verify", "verify nowhere", "verify .", "check", "check nosuch",
    "check nosuch.yaml",
    "check fedavg --only nosuch", "scene nosuch=1", "scene --clients x", "scene --save /nope/x.npz noise=5", "new",
    "new method 3", "new nosuch x", "bench --suite nosuch", "bench --read nowhere", "nosuch", "--nosuch",
    "dashboard nosuch=3",
    "run --allow", "run --allow ../x",
]  # fmt: skip


FAST = 20  # of each list, in `make test`: those that once ended with a traceback come first


def cases(words: list[str]) -> list[object]:
    return [pytest.param(word, marks=[] if i < FAST else pytest.mark.slow) for i, word in enumerate(words)]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trust, "_allowed", set())
    return tmp_path


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a refused command says; its exit code is 2, or argparse's."""
    try:
        code = main(words)
    except SystemExit as end:  # argparse's, for the words of its options
        code = end.code
    said = capsys.readouterr()
    assert code == 2, (code, said.out[-300:], said.err[-300:])
    assert "Traceback" not in said.err
    return said.err


def require_sentence(text: str) -> None:
    lines = text.strip().splitlines()
    assert lines, "it says nothing"
    assert len(lines[-1]) > 20, text
    for internal in ("full_key", "object_type", "omegaconf.", "hydra.errors", "Errno", "NoneType"):
        assert internal not in text, text


@pytest.mark.parametrize("words", cases(RUN))
def test_a_mistake_in_a_run(words, here, capsys):
    require_sentence(told(["run", *ONCE, *(words.split(" ") if words.strip() else [words])], capsys))
    assert not list(here.iterdir()), "something was left behind"


@pytest.mark.parametrize("words", cases(OTHERS))
def test_a_mistake_elsewhere(words, here, capsys):
    require_sentence(told(words.split(), capsys))
    assert not list(here.iterdir()), "something was left behind"


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
