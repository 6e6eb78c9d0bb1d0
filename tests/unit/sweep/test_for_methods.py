"""One method's settings in a sweep of several."""

import pytest

from fnll.errors import UserError
from fnll.harness.config import compose
from fnll.sweep.display import told_once
from fnll.sweep.grid import PlannedRun, expand


def runs(*words: str) -> list[tuple[str, list[str]]]:
    return [(run.method, [word for word in run.words if word.startswith("method")]) for run in expand(words).runs]


def test_a_word_about_a_method_applies_where_it_runs():
    assert runs("method=fedavg,fedcorr", "fedcorr.passes=1,2") == [
        ("fedavg", ["method=fedavg"]),
        ("fedcorr", ["method=fedcorr", "method.passes=1"]),
        ("fedcorr", ["method=fedcorr", "method.passes=2"]),
    ]


def test_it_is_what_fnll_run_would_be_asked_for():
    (run,) = expand(["method=fedcorr", "fedcorr.passes=3"]).runs
    assert compose(run.words).cfg.method.passes == 3
    assert run.command == "fnll run method=fedcorr method.passes=3"


def test_it_outweighs_what_all_methods_are_given():
    assert runs("method=fedprox", "method.mu=0.5", "fedprox.mu=0.1") == [
        ("fedprox", ["method=fedprox", "method.mu=0.1"])
    ]


def test_the_default_method_and_an_experiments_methods_count():
    assert runs("fedavg.eval=1")[0][1] == ["method.eval=1"]
    chosen = runs("experiment=demo", "fedrn.k=1", "seed=0")
    assert {name: "method.k=1" in words for name, words in chosen}["fedrn"]
    assert not any("method.k=1" in words for name, words in chosen if name != "fedrn")


def test_inner_methods_and_additions():
    assert runs("method=fedavg,fedcorr", "method@fedcorr.usual=fedprox", "+fedcorr.usual.extra=1")[1][1] == [
        "method=fedcorr",
        "method@method.usual=fedprox",
    ]
    assert "+method.usual.extra=1" in expand(["method=fedcorr", "+fedcorr.usual.extra=1"]).runs[0].words


def test_a_method_that_does_not_run_is_named():
    with pytest.raises(
        UserError, match=r"fedcorr\.passes=1 applies where method=fedcorr runs, and this sweep runs fedavg"
    ):
        expand(["method=fedavg", "fedcorr.passes=1"])


def test_a_setting_that_some_methods_lack_is_told_once_with_the_cure():
    with pytest.raises(UserError) as caught:
        expand(["method=fedavg,fedcorr,fedrn", "method.passes=1", "seed=range(5)"])
    assert str(caught.value) == (
        "method.passes=1: fedavg, fedrn have no setting 'passes'; type fedcorr.passes=1, "
        "which applies where that method runs"
    )
    expand(["method=fedcorr", "method.passes=1"])
    expand(["method=fedavg,fedrn", "method.passes=1"])  # nobody has it: Hydra says so


def test_equal_mistakes_are_told_once():
    runs = [PlannedRun((f"seed={i}",), "fedavg", seed=str(i)) for i in range(5)]
    assert told_once("failed", {"boom": runs, "bang": runs[:1]}) == [
        "5 runs failed: boom",
        "  fnll run seed=0",
        "  fnll run seed=1",
        "  and 3 more: fedavg seed 2, fedavg seed 3, fedavg seed 4",
        "failed: bang",
        "  fnll run seed=0",
    ]
