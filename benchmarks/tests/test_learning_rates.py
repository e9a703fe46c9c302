"""benchmarks/learning_rates.py: which runs it does, and what is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import learning_rates, report
from benchmarks.learning_rates import CASES, COMPARISONS, GRID, make_result, summarize
from benchmarks.tests.equal_json import assert_equal_json

STORED = sorted(learning_rates.FOLDER.glob("*.json"))


def searched(seed: int, clear: bool, score: float | None = None) -> dict[str, Any]:
    found = {"metric": "loss", "is_clear": clear, "suggestion": 1e-3}
    return {"seed": seed, "rate": 1e-3, "score": score, "search": found}


@pytest.mark.backends("torch")
def test_only_missing_runs_are_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[float | str] = []

    def train(case: Any, seed: int, rate: float) -> dict[str, Any]:
        done.append(rate)
        return {"seed": seed, "rate": rate, "score": 100.0 + rate}

    def search(case: Any, seed: int, metric: str) -> dict[str, Any]:
        done.append(metric)
        return {**searched(seed, True, 90.0), "search": {"metric": metric, "is_clear": True, "suggestion": 1e-3}}

    monkeypatch.setattr(learning_rates, "train", train)

    def compare(case: Any, seed: int, name: str) -> dict[str, Any]:
        done.append(name)
        return {"seed": seed, "search": {"metric": name, "is_clear": True, "suggestion": 1e-3}}

    monkeypatch.setattr(learning_rates, "search", search)
    monkeypatch.setattr(learning_rates, "compare", compare)
    learning_rates.run("dqn-cartpole", 0, tmp_path)
    wanted = ["loss", "reward", *GRID, *COMPARISONS]
    assert done == wanted
    result = learning_rates.run("dqn-cartpole", 1, tmp_path)
    assert done == 2 * wanted
    learning_rates.run("dqn-cartpole", 1, tmp_path)
    assert done == 2 * wanted
    assert_equal_json(json.loads((tmp_path / "dqn-cartpole.json").read_text()), json.loads(json.dumps(result)))
    assert "| dqn-cartpole | reward            | 15,000 | 2 of 2 |" in report.learning_rates_table([result])


@pytest.mark.backend_free
def test_only_clear_suggestions_are_judged() -> None:
    grid = [{"seed": seed, "rate": rate, "score": 23 + 1e4 * rate} for seed in range(2) for rate in (1e-3, 1e-2)]
    case = CASES["dqn-cartpole"]
    assert summarize(case, grid)["loss"]["met"] is None
    found = summarize(case, [*grid, searched(0, True, 23 + 85.0), searched(1, False)])["loss"]
    assert (found["clear"], found["searches"], found["best_rate"], found["met"]) == (1, 2, 1e-2, True)
    assert found["share"] == pytest.approx(0.85)
    assert not summarize(case, [*grid, searched(0, True, 23 + 75.0)])["loss"]["met"]
    # The score of a comparison is that of the training with the same seed and rate.
    compared = {"seed": 1, "search": {"metric": "OptFinder, loss", "is_clear": True, "suggestion": 1e-2}}
    assert summarize(case, [*grid, compared])["OptFinder, loss"]["score"] == 123.0
    assert make_result("dqn-cartpole", [searched(0, False)])["summary"]["loss"]["share"] is None


@pytest.mark.backend_free
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_summary_follows_from_the_stored_runs(path: Path) -> None:
    result = json.loads(path.read_text())
    assert_equal_json(summarize(CASES[path.stem], result["runs"]), result["summary"])
