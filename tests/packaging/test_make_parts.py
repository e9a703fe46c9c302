"""The parts in which `make test` runs TensorFlow's tests hold all tests, and nothing that pytest cannot run."""

from __future__ import annotations

import re

import pytest

from conftest import ROOT

pytestmark = pytest.mark.backend_free


def test_parts_hold_all_tests_and_nothing_else() -> None:
    """A part with a path that is no test ends without running any, which looks like a part without tests."""
    (parts,) = re.findall(r"^parts_tensorflow := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    patterns = parts.replace("'", "").split()
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern)) if path.is_dir() or "*" in pattern]
    assert all(path.is_dir() or path.name.startswith("test_") for path in paths)
    tests = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "benchmarks" / "tests").rglob("test_*.py")]
    assert [test for test in tests if not {test, *test.parents} & set(paths)] == []
