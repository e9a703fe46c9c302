"""benchmarks/learning.py and its modules: the command line, the stored results and the Blind Cliffwalk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras")

from benchmarks import learning
from benchmarks.learning_tasks import cliffwalk
from benchmarks.tests.equal_json import assert_equal_json
from noterl.replay import Prioritized, Uniform

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize("name", learning.TASKS)
def test_task_has_the_functions_of_the_runner(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, arguments, _, complete = learning.parse([name])
    assert complete
    least = 1 if name == "hopper-crossq-1024" else 3  # a wide network is shown with one seed
    assert arguments.seeds == module.SEEDS >= least
    assert all(callable(getattr(module, part)) for part in ("run", "table", "draw"))
    if name in learning.MODULES:
        assert not learning.parse([name, "--seeds", "1"])[3]
    else:  # its runs are stored one by one
        assert learning.parse([name, "--seeds", "1"])[3]
        assert not learning.parse([name, "--steps", "1"])[3]


def test_help_lists_each_task_with_its_goal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        learning.parse(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in learning.TASKS)
    assert "95 %" in shown


@pytest.mark.parametrize("name", learning.MODULES)
def test_stored_summary_and_table_follow_from_the_stored_runs(name: str) -> None:
    path = learning.LEARNING_RESULTS / f"{name}.json"
    if not path.exists():
        pytest.skip("no result is stored yet")
    module, result = learning.load(name), json.loads(path.read_text())
    assert result["seeds"] == module.SEEDS
    assert_equal_json(module.summarize(result), result["summary"])
    assert module.table(result).splitlines() == result["table"]
    assert module.table(result).count("|") > 10


def test_zero_seeds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        learning.main(["cliffwalk", "--seeds", "0"])
    assert "--seeds must be at least 1" in capsys.readouterr().err


def test_stored_cliffwalk_shows_that_uniform_sampling_is_slower() -> None:
    rows = json.loads((learning.LEARNING_RESULTS / "cliffwalk.json").read_text())["summary"]
    assert rows[-1]["ratio"]["low"] > 4
    ratios = [row["ratio"]["ratio"] for row in rows]
    assert ratios == sorted(ratios)
    assert all(row["prioritized"]["worst"] < row["uniform"]["best"] for row in rows if row["n"] >= 6)


def test_cliffwalk_memory_holds_each_sequence_once() -> None:
    learner = cliffwalk.Learner(4, Uniform())
    learner.reset(0)
    storage = learner.agent.replay._storage
    assert len(learner.agent.replay) == 30
    assert np.bincount(storage.observation).tolist() == [16, 8, 4, 2]
    assert storage.reward.sum() == 1
    assert storage.terminated.sum() == 16
    first = storage.action.copy()
    learner.reset(1)
    assert storage.action.tolist() != first.tolist()
    learner.reset(0)
    np.testing.assert_array_equal(np.roll(storage.action, -(storage.begin % 30)), first)


@pytest.mark.backends("jax")
def test_cliffwalk_runs_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learning.main(["cliffwalk", "--seeds", "2", "--sizes", "3", "5", "--output", str(tmp_path)])
    result: dict[str, Any] = json.loads((tmp_path / "cliffwalk.json").read_text())
    assert [(run["n"], run["seed"]) for run in result["runs"]] == [(3, 0), (3, 1), (5, 0), (5, 1)]
    assert all(0 < updates < 5000 for run in result["runs"] for updates in run["updates"].values())
    assert {"machine", "versions", "backend", "date", "summary", "table"} <= result.keys()
    assert (tmp_path / "cliffwalk.png").exists()
    assert "| 5   | 62          |" in capsys.readouterr().out


def test_solved_cliffwalk_has_the_true_values() -> None:
    learner = cliffwalk.Learner(3, Prioritized())
    learner.reset(5)
    assert learner.error() > 0.05
    updates = learner.learn()
    assert updates % cliffwalk.GROUP == 0
    assert 0 < updates < 2000
    kernel, bias = learner.network.get_weights()
    np.testing.assert_allclose(kernel + bias, learner.truth, atol=0.1)
