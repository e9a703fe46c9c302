"""Processes that are killed at random moments end as uninterrupted ones; only `make test-faults` runs these tests."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.kills import RUNS, kill_and_compare
from tests.support.states import ROOT

# Each process is a fork of this one.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.backends("torch"),
    pytest.mark.filterwarnings("ignore:observations of the shape .* are flattened:UserWarning"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    # `tests/callbacks/test_backup_and_restore.py` kills two runs each time.
    pytest.mark.skipif("NOTERL_FAULT_REPEATS" not in os.environ, reason="takes a minute: make test-faults runs it"),
]


@pytest.mark.parametrize("name", [name for name in RUNS if name != "device"])
def test_killed_run_ends_as_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    seed = random.randrange(2**31)
    kills, found = kill_and_compare(name, tmp_path, 2, random.Random(seed))
    assert not found, f"{kills} kills, seed {seed}: {found[:5]}"


# The first process measures the defaults; the episodes of the trials after it do not end.
WAITING = """
import os, pathlib, time
from gymnasium.envs.classic_control import CartPoleEnv

class Waiting(CartPoleEnv):
    def reset(self, **arguments):
        pathlib.Path(f"{os.getpid()}.begun").touch()
        while not min(pathlib.Path().glob("*.begun"), key=os.path.getmtime).samefile(f"{os.getpid()}.begun"):
            time.sleep(0.1)
        return super().reset(**arguments)
"""


def test_killed_search_leaves_no_trial(tmp_path: Path) -> None:
    """As `kill -9` of a search that was started on the command line, with two trials at once."""
    (tmp_path / "waiting.py").write_text(WAITING)
    command = [sys.executable, "-m", "noterl", "tune", "dqn", "--env", "waiting:Waiting", "--steps", "200"]
    command += ["--jobs", "2", "--trials", "4", "--evaluations", "1", "--episodes", "1", "--verbose", "0"]
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **variables}) as search:
        trials: list[psutil.Process] = []
        while len(trials) < 2:
            assert search.poll() is None
            time.sleep(0.1)
            children = psutil.Process(search.pid).children(recursive=True)
            trials = [child for child in children if (tmp_path / f"{child.pid}.begun").exists()]
        search.kill()
    _, left = psutil.wait_procs(children, 60)
    assert not left
