"""`benchmarks/replay.py`: what counts as a bar that is met, and its table."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from benchmarks import replay as bars
from tests.support.doubles import FakeClock

pytestmark = pytest.mark.backend_free


def clocked(monkeypatch, times):
    """Let a call take the microseconds that its name stands for."""
    monkeypatch.setattr(bars, "microseconds", lambda call: times[call].pop(0))


def test_a_bar_is_met_when_the_worse_end_of_the_interval_is(monkeypatch):
    clocked(monkeypatch, {"ours": [10.0, 11.0, 10.0, 11.0, 10.0], "theirs": [10.0] * 5})
    row = bars.compared("name", "ours", "theirs", 5, bar=1.1)
    assert row["ratio"]["ratio"] == pytest.approx(1.1**0.4)
    assert (row["ours"], row["theirs"], row["met"]) == (10.0, 10.0, True)
    clocked(monkeypatch, {"ours": [10.0, 11.0, 10.0, 11.0, 10.0], "theirs": [10.0] * 5})
    assert bars.compared("name", "ours", "theirs", 5, bar=1.05)["met"] is False
    clocked(monkeypatch, {"ours": [10.0] * 4, "theirs": [100.0] * 4})
    assert bars.compared("name", "ours", "theirs", 4, bar=1.0, per=10)["met"] is None


def test_a_time_is_held_to_its_median(monkeypatch):
    clocked(monkeypatch, {"ours": [1.0, 9.0, 2.0]})
    row = bars.timed("name", "ours", 3, bar=0.3, per=8)
    assert (row["ours"], row["met"]) == (0.25, True)


def test_the_table_has_a_line_for_each_row(monkeypatch):
    clocked(monkeypatch, {"ours": [2.0] * 10, "theirs": [1.0] * 5})
    rows = [bars.timed("alone", "ours", 5, bar=1.0), bars.compared("both", "ours", "theirs", 5, bar=3.0)]
    lines = bars.table({"runs": rows}).splitlines()
    assert lines[2] == "| alone | 2.0 |  |  |  | 1 | missed |"
    assert lines[3] == "| both | 2.0 | 1.0 | 2.00 | 2.00 to 2.00 | 3 | met |"


def test_what_has_no_bar_is_not_judged():
    row = bars.compared("name", "ours", "theirs", 5, bar=None, measure=lambda call: {"ours": 3.0, "theirs": 2.0}[call])
    assert (row["ours"], row["theirs"], row["met"]) == (3.0, 2.0, None)
    assert bars.table({"runs": [row]}).splitlines()[-1] == "| name | 3.0 | 2.0 | 1.50 | 1.50 to 1.50 |  |  |"


def test_time_is_measured(monkeypatch: pytest.MonkeyPatch):
    clock = FakeClock()
    monkeypatch.setattr(bars, "time", SimpleNamespace(perf_counter=clock))
    assert bars.microseconds(lambda: clock.sleep(0.001), least=0.003) == pytest.approx(1000)
    assert bars.once(lambda: clock.sleep(0.002)) == pytest.approx(2000)


def test_adding_rows_goes_to_each_lane():
    memory = bars.Replay(100)
    memory.build(*bars.CARTPOLE)
    bars.add_rows(memory, 8)()
    assert memory._storage.lane[:8].tolist() == list(range(8))
    assert len(np.unique(memory._storage.observation[:8], axis=0)) == 8


def test_hindsight_is_compared_on_the_same_rows():
    (row,) = bars.hindsight(2, rows=3000)
    assert 0.2 < row["ratio"]["ratio"] < 50


def test_memory_is_measured():
    """In a process of its own: one that has freed memory before grows by less than it is asked for."""
    script = "from benchmarks import replay; print(replay.memory(2, rows=4000)[0]['ours'])"
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert 6 < float(done.stdout) < 16  # of so few rows much else is counted


def test_gathering_ahead_is_compared_on_the_same_rows(monkeypatch):
    monkeypatch.setattr(bars, "ATARI", (spaces.Box(0, 255, (6, 6, 4), np.uint8), spaces.Discrete(18)))
    rows = bars.prefetch(2, seconds=1e-5)
    assert [row["met"] for row in rows] == [None] * 4
    assert all(0.02 < row["ratio"]["ratio"] < 50 for row in rows)


def test_two_pairs_are_the_least(capsys):
    with pytest.raises(SystemExit):
        bars.main(["--pairs", "1"])
    assert "--pairs must be at least 2" in capsys.readouterr().err
