"""A stranger's machine: fnll installed from its wheel (not editable), a plugin package beside it, an empty directory.

The new environment is layered over the test environment by a path file, so that torch is not installed again; what is
installed in it comes first.
"""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from jinja2 import Environment
from packaging.requirements import Requirement

from fnll.published import tables
from tiny import TINY

ROOT = Path(__file__).parents[2]
WORLD = [*TINY, "rounds=2"]


def call(*words, cwd, check=True):
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(w) for w in words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=500
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A new environment with fnll's wheel; gives (its bin folder, a way to install a folder into it)."""
    pytest.importorskip("hatchling", reason="building a wheel offline needs hatchling in the test environment")
    home = tmp_path_factory.mktemp("machine")
    call(sys.executable, "-m", "venv", "--without-pip", home / "env", cwd=home)
    site = home / "env/lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "layer.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def install(folder: Path):
        wheels = home / f"wheels-{folder.name}"
        build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels]
        call(sys.executable, *build, folder, cwd=home)
        (wheel,) = wheels.glob("*.whl")
        target = ["--python", home / "env/bin/python", "install", "--quiet", "--no-deps", "--force-reinstall", wheel]
        call(sys.executable, "-m", "pip", *target, cwd=home)

    install(ROOT)
    return home / "env/bin", install


def test_the_wheel_says_which_versions_it_needs(machine, tmp_path):
    bin, _ = machine
    ask = "from importlib.metadata import requires; print(*requires('fnll'), sep='\\n')"
    needs = {
        found.name: found.specifier
        for found in map(Requirement, call(bin / "python", "-c", ask, cwd=tmp_path).stdout.splitlines())
    }
    assert not any(needs["lightning"].contains(version) for version in ("2.6.1", "2.6.2", "2.6.3"))
    assert not any(needs["hydra-core"].contains(version) for version in ("1.3.2", "1.3.3", "1.4.0"))


def test_the_wheel_runs_from_an_empty_directory(machine, tmp_path):
    bin, _ = machine
    find = "from importlib.util import find_spec; print(find_spec('fnll').origin)"
    where = call(bin / "python", "-c", find, cwd=tmp_path).stdout
    assert "env/lib" in where, "the installed fnll is used, not the source tree"
    done = call(bin / "fnll", "run", *WORLD, cwd=tmp_path)
    assert "last10" in done.stdout
    assert list(tmp_path.glob("runs/fedavg-*/summary.json"))


def test_the_wheel_holds_the_published_numbers(machine, tmp_path):
    bin, _ = machine
    ask = "from fnll.published import table, tables; print(len(tables()), table('fedcorr_table2').records[0].value)"
    assert call(bin / "python", "-c", ask, cwd=tmp_path).stdout.split() == [str(len(tables())), "93.73"]


@pytest.mark.slow
def test_a_package_from_the_scaffold_is_found_checked_run_and_swept(machine, tmp_path):
    bin, install = machine
    call(bin / "fnll", "new", "method", "my_idea", "--package", tmp_path / "my_fl", cwd=tmp_path)
    install(tmp_path / "my_fl")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "my_idea" in call(bin / "fnll", "methods", cwd=empty).stdout
    assert "checks hold" in call(bin / "fnll", "check", "my_idea", cwd=empty).stdout
    call(bin / "fnll", "run", "method=my_idea", *WORLD, cwd=empty)
    assert list(empty.glob("runs/my_idea-*/summary.json"))
    call(bin / "fnll", "sweep", "method=fedavg,my_idea", "seed=0,1", *WORLD, "--jobs", "2", cwd=empty)
    assert len(list(empty.glob("runs/*/summary.json"))) == 4
    call(bin / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "my_fl/tests", cwd=empty)


@pytest.mark.slow
def test_data_partition_noise_and_network_from_a_package(machine, tmp_path):
    """The examples of docs/add-data-or-noise.md, moved into a package."""
    bin, install = machine
    folder = tmp_path / "my_world_fl"
    source = folder / "src/my_world_fl"
    for name, text in re.findall(
        r"^```\w+\n# file: (\S+)\n(.*?)^```$", (ROOT / "docs/add-data-or-noise.md").read_text(), re.M | re.S
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text.replace("_target_: ", "_target_: my_world_fl."))
    (source / "__init__.py").touch()
    template = Environment().from_string((ROOT / "src/fnll/cli/templates/pyproject.toml.j2").read_text())
    (folder / "pyproject.toml").write_text(template.render(package="my_world_fl"))
    install(folder)
    words = ["dataset=stripes", "partition=growing", "noise=every_second", "model=linear", "num_clients=6", "rounds=2"]
    call(bin / "fnll", "run", *words, cwd=tmp_path)
    (config,) = [yaml.safe_load(path.read_text()) for path in tmp_path.glob("runs/*/config.yaml")]
    targets = {config[group]["_target_"] for group in ("dataset", "partition", "noise", "model")}
    assert targets == {f"my_world_fl.{name}" for name in
                       ("my_world.stripes", "my_world.Growing", "my_noise.EverySecond", "my_world.linear")}  # fmt: skip
    assert list(tmp_path.glob("runs/*/summary.json"))


@pytest.mark.slow
def test_two_packages_with_one_name_are_refused(machine, tmp_path):
    bin, install = machine
    for folder in ("first_fl", "second_fl"):
        call(bin / "fnll", "new", "method", "twin", "--package", tmp_path / folder, cwd=tmp_path, check=False)
        if not (tmp_path / folder).exists():  # the second cannot be made while the first is installed: make it by hand
            source = tmp_path / folder / "src" / folder / "configs/method"
            source.mkdir(parents=True)
            (source.parents[1] / "__init__.py").write_text("")
            (source / "twin.yaml").write_text("_target_: fnll.methods.fedavg.FedAvg\n_partial_: true\n")
            (tmp_path / folder / "pyproject.toml").write_text(
                (tmp_path / "first_fl/pyproject.toml").read_text().replace("first", "second")
            )
        install(tmp_path / folder)
    done = call(bin / "fnll", "run", "method=twin", *WORLD, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "method=twin is defined twice" in done.stderr
    assert "Traceback" not in done.stderr
