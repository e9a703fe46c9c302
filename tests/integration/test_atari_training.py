"""Training in Atari games and in EnvPool: the cases of two files, each in a process of its own."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.isolated import run_cases

pytestmark = [pytest.mark.backends("torch"), pytest.mark.slow]


@pytest.mark.parametrize("package", ["ale_py", "envpool"])
def test_cases_pass(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    run_cases(f"tests/integration/{package}_cases.py")
