"""The oldest declared versions are the versions that `make test-oldest` installs and tests."""

import os
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    return dict(line.lower().split("==") for line in lines if not line.startswith("#"))


def test_the_oldest_versions_are_those_that_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {}
    for requirement in map(Requirement, project["dependencies"]):
        floor = re.search(r">=([\d.]+)", str(requirement.specifier))
        declared[requirement.name] = Version(floor[1])
    assert {name: Version(number) for name, number in pinned().items()} == declared


@pytest.mark.skipif(
    not os.environ.get("VASWANI_OLDEST"), reason="needs the oldest versions: make test-oldest"
)
def test_the_oldest_versions_are_installed():
    assert {name: Version(version(name)).base_version for name in pinned()} == {
        name: Version(number).base_version for name, number in pinned().items()
    }
