"""`import fnll` is quick and offers what the author of a method needs; the top level holds nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

import fnll
from fnll.harness.moved import MOVED, new_home

HERE = Path(fnll.__file__).parent
TESTS = Path(__file__).parent


def test_importing_fnll_imports_no_torch():
    probe = (
        "import sys, fnll; print([name for name in ('torch', 'lightning', 'numpy', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_surface_is_what_it_says():
    for name in fnll.__all__:
        assert getattr(fnll, name) is not None
    assert fnll.FedAvg.__module__ == "fnll.methods.fedavg"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = fnll.Nothing


def test_the_top_level_is_what_authors_import():
    modules = {path.stem for path in HERE.glob("*.py")} - {"__init__", "__main__"}
    assert modules == {
        "errors", "federation", "images", "lengths", "local", "net", "seeding", "settings", "training", "types",
        "weights",
    }  # fmt: skip


def test_unit_tests_lie_where_the_code_does():
    found = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    rooms = {path.parent for path in found}
    assert [str(room) for room in rooms if not (HERE / room / "__init__.py").is_file()] == []
    flat = [path.stem.removeprefix("test_") for path in found if path.parent == Path()]
    modules = ("surface", *(path.stem for path in HERE.glob("*.py")))
    assert [name for name in flat if not name.startswith(modules)] == []  # training_lightning is one of training's


@pytest.mark.parametrize("old", MOVED)
def test_moved_modules_are_at_their_new_home_and_not_at_the_old(old):
    new = HERE.joinpath(*MOVED[old].split("."))
    assert new.with_suffix(".py").is_file() or (new / "__init__.py").is_file()
    assert not HERE.joinpath(*old.split(".")).with_suffix(".py").is_file()


def test_new_homes_of_modules_inside_moved_packages():
    assert new_home("fnll.noisy.mixture") == "fnll.tools.mixture"
    assert new_home("fnll.experiment") == "fnll.harness.prepare"
    assert new_home("fnll.weights") is None


def test_a_single_run_was_called_experiment():
    import fnll.harness.prepare as prepare

    with pytest.warns(FutureWarning, match=r"fnll.harness.prepare.Experiment is called Run since 0\.2"):
        assert prepare.Experiment is prepare.Run
    with pytest.raises(AttributeError, match="no attribute 'Experimint'"):
        prepare.Experimint  # noqa: B018
