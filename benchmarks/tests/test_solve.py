"""benchmarks/solve.py: the order of the processes, the warm cache, the bars, and which results it stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, solve

SECONDS = {"noterl-jax": 5.0, "noterl-tensorflow": 8.0, "noterl-torch": 10.0, "sb3": 25.0, "sbx": 16.0}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Replace the processes and the clock, and return the participants that ran, in order."""
    found: list[str] = []
    now = [0.0]

    def execute(words: list[str], added: dict[str, str]) -> dict[str, Any]:
        name, seed = words[words.index("--run") + 1], int(words[words.index("--seed") + 1])
        who = f"noterl-{added['KERAS_BACKEND']}" if name == "noterl" else name
        assert (words[0] == "peer") == (name in ("sb3", "sbx")) and Path(added["NOTERL_CACHE"]).is_dir()
        found.append(who)
        now[0] += SECONDS[who]
        return {"mean": 474.9 if (who, seed) == ("sbx", 3) else 500.0, "steps": 40_000}

    monkeypatch.setattr(solve, "execute", execute)
    monkeypatch.setattr(solve.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(solve, "RESULT", tmp_path / "solve.json")
    return found


@pytest.mark.backend_free
def test_participants_alternate_after_a_run_that_fills_the_cache(ran: list[str]) -> None:
    solve.main(["--seeds", "5", "--peer-python", "peer"])
    order = list(solve.PARTICIPANTS)
    assert ran == [*order[:3], *order, *order[::-1], *order, *order[::-1], *order]
    result = json.loads(solve.RESULT.read_text())
    rows = {row["name"]: (row["ratio"]["ratio"], row["met"]) for row in result["summary"]["rows"]}
    assert rows["noterl-jax / sb3"] == (0.2, True) and rows["noterl-jax / sbx"] == (0.3125, False)
    assert rows["noterl-torch / sb3"] == (0.4, None) and len(rows) == 6
    assert result["summary"]["solved"]["sbx"] == "4 of 5"
    table = report.solve_table(result)
    assert "0.25: met" in table and "0.3: missed" in table and "noterl-jax 5 of 5" in table


@pytest.mark.backend_free
def test_short_or_partial_runs_are_not_stored(ran: list[str]) -> None:
    solve.main(["--seeds", "1", "--peer-python", "peer"])
    solve.main(["--seeds", "5", "--participants", "noterl-jax", "sbx", "--peer-python", "peer"])
    assert not solve.RESULT.exists()
    with pytest.raises(SystemExit):
        solve.main(["--seeds", "0"])


@pytest.mark.backends("jax")
def test_noterl_ends_when_the_task_is_solved() -> None:
    found = solve.own(seed=0, steps=6_000)
    assert found["steps"] == 6_000 and 0 < found["mean"] < solve.GOAL
