"""Run a script in processes that train together."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
RANK_RUN = ROOT / "tests" / "support" / "rank_run.py"
EQUIVALENCE = ROOT / "tests" / "support" / "replica_equivalence.py"
MARK = "NOTERL_TEST_LAUNCH"  # the environment variable that the processes of one launch share


def launch(
    strategy: str,
    *arguments: object,
    options: tuple[str, ...] = (),
    before: Sequence[str] = (),
) -> tuple[int, str]:
    """Return the exit code and the output of `noterl launch`; none of its processes is left.

    Args:
        strategy: the option `--strategy`.
        *arguments: the script and its arguments.
        options: further options of the launcher.
        before: a command that runs the command line which follows.
    """
    command = [*before, sys.executable, "-m", "noterl", "launch", "--strategy", strategy]
    command += [*options, *map(str, arguments)]
    mark = uuid.uuid4().hex  # other tests may launch the same command at the same time
    variables = {
        MARK: mark,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    # PyTorch and gloo wait for half an hour for a process that has ended: the timeout of pytest ends such a launch.
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    left = [each for each in psutil.process_iter(["environ"]) if (each.info["environ"] or {}).get(MARK) == mark]
    assert not left, f"processes are left: {left}"
    return done.returncode, done.stdout + done.stderr
