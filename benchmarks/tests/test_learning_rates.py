"""benchmarks/learning_rates.py: which runs it does, and what is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import learning_rates, report
from benchmarks.learning_rates import CASES, GRID, make_result, summarize
from benchmarks.tests.equal_json import assert_equal_json

STORED = sorted(learning_rates.FOLDER.glob("*.json"))


def searched(seed: int, clear: bool, score: float | None = None) -> dict[str, Any]:
    return {"seed": seed, "rate": 1e-3, "score": score, "search": {"is_clear": clear, "suggestion": 1e-3}}


@pytest.mark.backends("torch")
def test_only_missing_runs_are_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[float | None] = []

    def train(case: Any, seed: int, rate: float) -> dict[str, Any]:
        done.append(rate)
        return {"seed": seed, "rate": rate, "score": 100.0 + rate}

    monkeypatch.setattr(learning_rates, "train", train)
    monkeypatch.setattr(learning_rates, "search", lambda case, seed: done.append(None) or searched(seed, True, 90.0))
    learning_rates.run("dqn-cartpole", 0, tmp_path)
    assert done == [None, *GRID]
    result = learning_rates.run("dqn-cartpole", 1, tmp_path)
    assert done == 2 * [None, *GRID]
    learning_rates.run("dqn-cartpole", 1, tmp_path)
    assert len(done) == 12
    assert_equal_json(json.loads((tmp_path / "dqn-cartpole.json").read_text()), json.loads(json.dumps(result)))
    assert "| dqn-cartpole | 15,000 | 2 of 2 |" in report.learning_rates_table([result])


@pytest.mark.backend_free
def test_only_clear_suggestions_are_judged() -> None:
    grid = [{"seed": seed, "rate": rate, "score": 23 + 1e4 * rate} for seed in range(2) for rate in (1e-3, 1e-2)]
    case = CASES["dqn-cartpole"]
    assert summarize(case, grid)["met"] is None
    found = summarize(case, [*grid, searched(0, True, 23 + 85.0), searched(1, False)])
    assert (found["clear"], found["searches"], found["best_rate"], found["met"]) == (1, 2, 1e-2, True)
    assert found["share"] == pytest.approx(0.85)
    assert not summarize(case, [*grid, searched(0, True, 23 + 75.0)])["met"]
    assert make_result("dqn-cartpole", [searched(0, False)])["summary"]["share"] is None


@pytest.mark.backend_free
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_summary_follows_from_the_stored_runs(path: Path) -> None:
    result = json.loads(path.read_text())
    assert_equal_json(summarize(CASES[path.stem], result["runs"]), result["summary"])
