"""The versions in `constraints/` are those that `pyproject.toml` allows; classifiers name the Pythons that were run."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.packaging.commands import ROOT

pytestmark = pytest.mark.backend_free

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements() -> Iterator[Requirement]:
    """Yield the requirements of noterl and of all extras, except noterl itself."""
    for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        yield from (each for each in map(Requirement, group) if each.name != PROJECT["name"])


def versions(name: str) -> dict[str, set[Version]]:
    """Return the versions of each package in a file of constraints; those of newer Pythons may differ."""
    found: dict[str, set[Version]] = {}
    for line in (ROOT / "constraints" / f"{name}.txt").read_text().splitlines():
        package, _, version = line.partition(";")[0].strip().partition("==")
        found.setdefault(canonicalize_name(package), set()).add(Version(version))
    return found


@pytest.mark.parametrize("name", ["oldest", "newest"])
def test_versions_are_allowed(name: str) -> None:
    found = versions(name)
    for requirement in requirements():
        for version in found[canonicalize_name(requirement.name)]:
            assert version in requirement.specifier, requirement


def test_oldest_versions_are_the_lower_limits() -> None:
    found = versions("oldest")
    for requirement in requirements():
        limits = {Version(each.version) for each in requirement.specifier if each.operator == ">="}
        assert found[canonicalize_name(requirement.name)] == limits, requirement


def test_classifiers_name_the_pythons_that_were_run() -> None:
    with (ROOT / "docs" / "versions.csv").open(newline="") as file:
        run = {row["Python"].rpartition(".")[0] for row in csv.DictReader(file)}
    claimed = {each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)}
    assert claimed == run
    (oldest,) = re.findall(r">=(\S+)", PROJECT["requires-python"])
    assert oldest == min(claimed, key=Version)
