"""Ctrl-C at random lines of `fit`: more often in `make test-faults`, and by `python -m tests.support.injection`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.injection import Interrupted

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.filterwarnings("ignore:the budget ended within a step of the vector environment:RuntimeWarning"),
    # Python leaves a file to the garbage collector if Ctrl-C arrives while a `with` statement is about to close it.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

RUNS = ["lanes", "rollouts", "vector"]
if "NOTERL_FAULT_REPEATS" in os.environ:
    RUNS += ["recurrent DQN", "recurrent PPO"]
TRIES = int(os.environ.get("NOTERL_FAULT_REPEATS", "10"))
SEED = None if "NOTERL_FAULT_REPEATS" in os.environ else 0  # other lines in each run of `make test-faults`


@pytest.mark.parametrize("run", RUNS)
def test_two_presses_at_any_line_leave_a_sound_agent(tmp_path: Path, run: str) -> None:
    interrupted, rng = Interrupted(run, tmp_path), random.Random(SEED)
    lines = [rng.randrange(1, interrupted.lines) for _ in range(TRIES)]
    for line in lines:
        interrupted.interrupt(line)


@pytest.mark.parametrize("run", ["lanes", "rollouts"])
def test_one_press_at_any_line_changes_no_result(tmp_path: Path, run: str) -> None:
    interrupted, rng = Interrupted(run, tmp_path), random.Random(SEED)
    lines = [rng.randrange(1, interrupted.lines) for _ in range(TRIES)]
    for line in lines:
        interrupted.interrupt(line, presses=1)
    interrupted.assert_exact()
