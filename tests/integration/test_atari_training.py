"""Training in Atari games: the cases of a file, in a process of its own."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.isolated import run_cases

pytestmark = [pytest.mark.backends("torch"), pytest.mark.slow]


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="the extra atari is not installed")
def test_cases_pass() -> None:
    run_cases("tests/integration/ale_py_cases.py")
