"""Versions that must never be installed are ruled out for everybody, not only for those who use constraints.txt."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
RULED_OUT = [
    ("lightning", "2.6.2"),  # malware: GHSA-w37p-236h-pfx3
    ("lightning", "2.6.3"),
    ("hydra-core", "1.3.2"),  # no blocklist for _target_
    ("hydra-core", "1.3.3"),
    ("hydra-core", "1.4.0"),  # not known to have one
]


def requirements() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {found.name: found for found in map(Requirement, project["dependencies"])}


def pinned() -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    return {name.lower(): version for name, version in found}


@pytest.mark.parametrize(("name", "version"), RULED_OUT)
def test_dangerous_versions_are_ruled_out(name, version):
    assert not requirements()[name].specifier.contains(version, prereleases=True)


@pytest.mark.parametrize("name", ["lightning", "hydra-core"])
def test_there_are_no_holes_for_old_versions(name):
    assert not requirements()[name].specifier.contains("1.0")


@pytest.mark.parametrize("name", sorted(requirements()))
def test_the_exact_versions_are_allowed_ones(name):
    assert requirements()[name].specifier.contains(Version(pinned()[name]))


def test_lightnings_other_package_is_of_the_same_version():
    assert pinned()["pytorch-lightning"] == pinned()["lightning"], "it comes with lightning, and from the same account"
