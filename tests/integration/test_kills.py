"""Processes that are killed at random moments end as uninterrupted ones; only `make test-faults` runs these tests."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.kills import RUNS, kill_and_compare

# Each process is a fork of this one.
pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    # `tests/callbacks/test_backup_and_restore.py` kills two runs each time.
    pytest.mark.skipif("NOTERL_FAULT_REPEATS" not in os.environ, reason="takes a minute: make test-faults runs it"),
]


@pytest.mark.parametrize("name", [name for name in RUNS if name != "device"])
def test_killed_run_ends_as_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    seed = random.randrange(2**31)
    kills, found = kill_and_compare(name, tmp_path, 2, random.Random(seed))
    assert not found, f"{kills} kills, seed {seed}: {found[:5]}"
