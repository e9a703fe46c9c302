"""Run tests/support/tensorflow_strategies.py in processes of their own, and read what each of them prints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "tensorflow_strategies.py"


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def start(program: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), program]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def results(processes: list[subprocess.Popen[str]]) -> list[dict]:
    """Return the last JSON line of each process; all of them must end."""
    try:
        ended = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    found = []
    for (output, errors), process in zip(ended, processes, strict=True):
        lines = [line for line in output.splitlines() if line.startswith("{")]
        assert lines or process.returncode in (0, -9), errors[-3000:]
        found.append(json.loads(lines[-1]) if lines else {})
    return found


def assert_equal(compared: dict) -> None:
    assert set(compared) == {"DQN", "PPO", "SAC"}
    for name, found in compared.items():
        assert found["applied"] == 200, name
        assert found["changed"] > 1e-3, name
        assert found["variables"] < 1e-9, name
        assert found["logs"] < 1e-9, name
