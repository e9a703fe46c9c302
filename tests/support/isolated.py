"""Runs test cases in a pytest process of their own.

ale-py crashes when it is imported into a process that has imported some of the packages of other tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_cases(path: str, *options: str) -> None:
    """Run the test cases of a file, and fail with their output if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, path]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-6_000:] + result.stderr[-2_000:]
    assert " passed" in result.stdout, result.stdout[-2_000:]
