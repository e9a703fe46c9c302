"""Without timing, each micro benchmark runs for two rounds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend_free

MICRO = Path(__file__).parents[1] / "micro"
PLANTED = """
def test_planted(benchmark):
    rounds, prepared = [], []

    def run(*args):
        rounds.append(args)
        assert len(rounds) <= {allowed}, "a round too many"
        return len(rounds)

    assert {call} == 2
    assert rounds == {rounds}
"""
CALLS = {
    "benchmark(run, 5)": [(5,), (5,)],
    "benchmark.pedantic(run, args=(5,), rounds=9)": [(5,), (5,)],
    "benchmark.pedantic(run, setup=lambda: prepared.append(1), rounds=9)": [(), ()],
    "benchmark.pedantic(run, setup=lambda: prepared.append(1) or ((len(prepared),), {}))": [(1,), (2,)],
}


def run_planted(folder: Path, allowed: int) -> subprocess.CompletedProcess[str]:
    """Run a benchmark of each kind in a folder with the fixtures of the micro benchmarks."""
    shutil.copy(MICRO / "conftest.py", folder)
    for number, (call, rounds) in enumerate(CALLS.items()):
        (folder / f"test_{number}.py").write_text(PLANTED.format(allowed=allowed, call=call, rounds=rounds))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-disable", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_benchmark_runs_two_rounds(tmp_path: Path):
    result = run_planted(tmp_path, allowed=2)
    assert f"{len(CALLS)} passed" in result.stdout, result.stdout + result.stderr


def test_benchmark_that_fails_in_its_second_round_fails(tmp_path: Path):
    result = run_planted(tmp_path, allowed=1)
    assert f"{len(CALLS)} failed" in result.stdout, result.stdout + result.stderr
    assert result.stdout.count("AssertionError: a round too many") >= len(CALLS)
