"""What benchmarks/learning.py concludes from the runs of a task, and which it makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import training
from benchmarks.tasks import TASKS

pytestmark = pytest.mark.backend_free

OPTIONS: dict[str, Any] = {
    "steps": 100_000,
    "backends": ["jax"],
    "peers": ["sb3"],
    "peer_python": "python",
    "afresh": False,
}


class Stage:
    """Stands in for the processes: everybody has the return of their seed, and of their name."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int]] = []

    def __call__(self, words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        peer = "benchmarks.peers.run" in words
        who = "sb3" if peer else f"noterl-{variables['KERAS_BACKEND']}"
        seed, steps = int(words[-3]), int(words[-2])
        self.ran.append((who, seed))
        value = -150.0 - seed - (10.0 if peer else 0.0)
        return {"returns": [value, value], "seconds": 1.0, "curve": {"steps": [steps], "reward_mean": [value]}}


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    monkeypatch.setattr(training, "execute", stage)
    return stage


def test_a_task_goes_on_where_it_was_and_is_judged_when_complete(stage: Stage, tmp_path: Path) -> None:
    task = training.Training("pendulum-ddpg")
    result = task.run(2, folder=tmp_path, **OPTIONS)
    assert stage.ran == [("noterl-jax", 0), ("sb3", 0), ("noterl-jax", 1), ("sb3", 1)]
    assert result["summary"]["noterl-jax"]["peers"]["sb3"]["verdict"] == "not judged"
    assert json.loads((tmp_path / "pendulum-ddpg.json").read_text()) == json.loads(json.dumps(result))

    result = task.run(5, folder=tmp_path, **OPTIONS)
    assert stage.ran[4:] == [(who, seed) for seed in (2, 3, 4) for who in ("noterl-jax", "sb3")]
    one = result["summary"]["noterl-jax"]
    assert (one["median"], one["worst"], one["seeds"], one["met"]) == (-152, -154, 5, None)
    assert one["peers"]["sb3"]["verdict"] == "better"
    row = "| noterl-jax | 5 | -152.0 | -152.0 | -154.0 | sb3 +10.0 (+8.2 to +11.8): better |"
    assert row in task.table(result)


def test_runs_of_other_settings_are_not_taken_over(stage: Stage, tmp_path: Path) -> None:
    task = training.Training("pendulum-ddpg")
    for options in ({}, {"steps": 9}, {"afresh": True, "steps": 9}):
        task.run(1, folder=tmp_path, **{**OPTIONS, **options})
    assert stage.ran == 3 * [("noterl-jax", 0), ("sb3", 0)]


@pytest.mark.parametrize(
    ("name", "reached", "expected"),
    [
        ("cartpole-ppo", {"median": 500, "worst": 450}, True),
        ("cartpole-ppo", {"median": 500, "worst": 449}, False),
        ("cartpole-ppo", {"median": 499, "worst": 499}, False),
        ("reach2d-ddpg", {"median": -4, "worst": -4, "success": 0.94}, False),
        ("reach2d-ddpg", {"median": -4, "worst": -4, "success": 0.95}, True),
        ("fetchreach-sac", {"median": -2, "worst": -50, "seed_means": [-2, -2, -3, -50, -2]}, True),
        ("fetchreach-sac", {"median": -2, "worst": -50, "seed_means": [-2, -2, -3.1, -50, -2]}, False),
    ],
)
def test_what_is_asked_for_is_met_by_all_of_its_figures(name: str, reached: dict[str, Any], expected: bool) -> None:
    assert training.met(TASKS[name], {"seeds": 5, **reached}) is expected
    assert training.met(TASKS[name], {"seeds": 4, **reached}) is None


def test_a_task_of_speed_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="a task of speed alone"):
        training.Training("cartpole-dqn-1")
