"""`noterl.envs.Atari`: the cases of `atari_cases.py`, in a process of their own."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.isolated import run_cases

pytestmark = [pytest.mark.backend_free, pytest.mark.slow]


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="the extra atari is not installed")
def test_atari_cases_pass() -> None:
    run_cases("tests/envs/atari_cases.py", "--backend-free")
