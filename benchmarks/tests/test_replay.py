"""benchmarks/replay.py: its bars, its table and what each part compares."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from benchmarks import replay
from benchmarks.report import replay_table
from tests.support.doubles import FakeClock

pytestmark = pytest.mark.backend_free


def set_times(monkeypatch, times):
    """Replace the timer: each call takes the next of the given microseconds."""
    monkeypatch.setattr(replay, "microseconds", lambda call: times[call].pop(0))


def test_bar_is_met_if_the_upper_end_of_the_interval_is_within_it(monkeypatch):
    set_times(monkeypatch, {"ours": [10.0, 11.0, 10.0, 11.0, 10.0], "theirs": [10.0] * 5})
    row = replay.compare("name", "ours", "theirs", 5, bar=1.1)
    assert row["ratio"] == {"ratio": 1.0, "low": 1.0, "high": 1.1}
    assert (row["ours"], row["theirs"], row["met"]) == (10.0, 10.0, True)
    set_times(monkeypatch, {"ours": [10.0, 11.0, 10.0, 11.0, 10.0], "theirs": [10.0] * 5})
    assert replay.compare("name", "ours", "theirs", 5, bar=1.05)["met"] is False
    set_times(monkeypatch, {"ours": [10.0] * 4, "theirs": [100.0] * 4})
    assert replay.compare("name", "ours", "theirs", 4, bar=1.0, per=10)["met"] is None


def test_time_is_judged_by_its_median(monkeypatch):
    set_times(monkeypatch, {"ours": [1.0, 9.0, 2.0]})
    row = replay.measure("name", "ours", 3, bar=0.3, per=8)
    assert (row["ours"], row["met"]) == (0.25, True)


def test_table_has_one_line_per_row(monkeypatch):
    set_times(monkeypatch, {"ours": [2.0] * 10, "theirs": [1.0] * 5})
    rows = [replay.measure("alone", "ours", 5, bar=1.0), replay.compare("both", "ours", "theirs", 5, bar=3.0)]
    lines = replay_table({"runs": rows}).splitlines()
    assert cells(lines[2]) == ["alone", "2.0", "", "", "1", "missed"]
    assert cells(lines[3]) == ["both", "2.0", "1.0", "2.00 (2.00 to 2.00)", "3", "met"]


def cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_comparison_without_bar_is_not_judged():
    row = replay.compare("name", "ours", "theirs", 5, bar=None, timer=lambda call: {"ours": 3.0, "theirs": 2.0}[call])
    assert (row["ours"], row["theirs"], row["met"]) == (3.0, 2.0, None)
    line = replay_table({"runs": [row]}).splitlines()[-1]
    assert cells(line) == ["name", "3.0", "2.0", "1.50 (1.50 to 1.50)", "", ""]


def test_timers_return_microseconds(monkeypatch: pytest.MonkeyPatch):
    clock = FakeClock()
    monkeypatch.setattr(replay, "time", SimpleNamespace(perf_counter=clock))
    assert replay.microseconds(lambda: clock.sleep(0.001), least=0.003) == pytest.approx(1000)
    assert replay.time_once(lambda: clock.sleep(0.002)) == pytest.approx(2000)


def test_add_rows_adds_one_row_to_each_lane():
    memory = replay.Replay(100)
    memory.build(*replay.CARTPOLE)
    replay.add_rows(memory, 8)()
    assert memory._storage.lane[:8].tolist() == list(range(8))
    assert len(np.unique(memory._storage.observation[:8], axis=0)) == 8


def test_hindsight_compares_memories_of_the_same_rows():
    (row,) = replay.hindsight(2, rows=3000)
    assert 0.2 < row["ratio"]["ratio"] < 50


def test_memory_measures_the_growth_of_the_process():
    """Runs in a new process: one that has freed memory before grows by less than it allocates."""
    script = "from benchmarks import replay; print(replay.memory(2, rows=4000)[0]['ours'])"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 6 < float(done.stdout) < 16  # with so few rows, other allocations count too


def test_prefetch_compares_memories_of_the_same_rows(monkeypatch):
    monkeypatch.setattr(replay, "ATARI", (spaces.Box(0, 255, (6, 6, 4), np.uint8), spaces.Discrete(18)))
    rows = replay.prefetch(2, seconds=1e-5)
    assert [row["met"] for row in rows] == [None] * 4
    assert all(0.02 < row["ratio"]["ratio"] < 50 for row in rows)


def test_a_single_pair_is_refused(capsys):
    with pytest.raises(SystemExit):
        replay.main(["--pairs", "1"])
    assert "--pairs must be at least 2" in capsys.readouterr().err
