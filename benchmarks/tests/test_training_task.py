"""benchmarks/training_task.py: which runs it does, which it takes from the stored result, and their summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import summaries, training_task
from benchmarks.tasks import TASKS

pytestmark = pytest.mark.backend_free

OPTIONS: dict[str, Any] = {
    "steps": 100_000,
    "backends": ["jax"],
    "peers": ["sb3"],
    "peer_python": "python",
    "repeat": False,
}


class FakeProcesses:
    """Replaces the processes. The return of a run depends on the seed and on the participant."""

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
def processes(monkeypatch: pytest.MonkeyPatch) -> FakeProcesses:
    processes = FakeProcesses()
    monkeypatch.setattr(training_task, "execute", processes)
    return processes


def test_task_continues_after_its_stored_runs(processes: FakeProcesses, tmp_path: Path) -> None:
    task = training_task.TrainingTask("pendulum-ddpg")
    result = task.run(2, folder=tmp_path, **OPTIONS)
    assert processes.ran == [("noterl-jax", 0), ("sb3", 0), ("noterl-jax", 1), ("sb3", 1)]
    assert result["summary"]["noterl-jax"]["peers"]["sb3"]["outcome"] == "undecided"
    assert json.loads((tmp_path / "pendulum-ddpg.json").read_text()) == json.loads(json.dumps(result))

    result = task.run(5, folder=tmp_path, **OPTIONS)
    assert processes.ran[4:] == [(who, seed) for seed in (2, 3, 4) for who in ("noterl-jax", "sb3")]
    one = result["summary"]["noterl-jax"]
    assert (one["median"], one["worst"], one["seeds"], one["met"]) == (-152, -154, 5, None)
    assert one["peers"]["sb3"]["outcome"] == "better"
    row = next(line for line in task.table(result).splitlines() if "noterl-jax" in line)
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        "pendulum-ddpg",
        "100,000",
        "noterl-jax",
        "5 of 10",
        "-152.0",
        "-152.0 (-153.7 to -150.3)",
        "-154.0",
        "",
        "sb3 +10.0 (+8.2 to +11.8): better, bar met",
        "-152.1 ± 94.3",
    ]


def test_stored_runs_of_other_settings_are_not_reused(processes: FakeProcesses, tmp_path: Path) -> None:
    task = training_task.TrainingTask("pendulum-ddpg")
    for options in ({}, {"steps": 9}, {"repeat": True, "steps": 9}):
        task.run(1, folder=tmp_path, **{**OPTIONS, **options})
    assert processes.ran == 3 * [("noterl-jax", 0), ("sb3", 0)]


@pytest.mark.parametrize(
    ("name", "reached", "expected"),
    [
        ("cartpole-ppo", {"median": 500, "worst": 450}, True),
        ("cartpole-ppo", {"median": 500, "worst": 449}, False),
        ("cartpole-ppo", {"median": 499, "worst": 499}, False),
        ("reach2d-ddpg", {"median": -4, "worst": -4, "success": 0.94}, False),
        ("reach2d-ddpg", {"median": -4, "worst": -4, "success": 0.95}, True),
        ("fetchreach-sac", {"median": -2, "worst": -50, "scores": [-2, -2, -3, -50, -2]}, True),
        ("fetchreach-sac", {"median": -2, "worst": -50, "scores": [-2, -2, -3.1, -50, -2]}, False),
    ],
)
def test_goal_is_met_if_all_of_its_figures_are(name: str, reached: dict[str, Any], expected: bool) -> None:
    assert summaries.goal_met(TASKS[name], {"seeds": 5, **reached}) is expected
    assert summaries.goal_met(TASKS[name], {"seeds": 4, **reached}) is None


def test_task_that_only_measures_speed_is_refused() -> None:
    with pytest.raises(ValueError, match="task must be"):
        training_task.TrainingTask("cartpole-dqn-1")
