"""The tasks for agents with a memory run, and the largest return of the masked one is reached by the right answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.memory_tasks import DECISIONS, MEMORY_TASKS, SYMBOLS, MaskedRecall
from benchmarks.processes import RESULTS
from benchmarks.tests.equal_json import assert_equal_json
from noterl import envs

pytestmark = pytest.mark.backends("torch")


@pytest.mark.filterwarnings("ignore:fit ended:UserWarning")
@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_task_trains_and_is_summarized(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.memory_tasks.EPISODES", 1)
    task: Any = MEMORY_TASKS[name]
    begun = []

    def execute(words: list[str], added: dict[str, str]) -> dict[str, Any]:
        begun.append(words[2:])
        if "benchmarks.peers.ppo_lstm" in words:
            return {"score": -200.0, "steps_per_second": 1.0}
        return task.run_one(words[-3], int(words[-2]), int(words[-1]))

    monkeypatch.setattr("benchmarks.memory_tasks.execute", execute)
    result = task.run(1, steps=16, peer_python="python", folder=tmp_path)
    participants = sorted([*(memory or "without" for memory in task.memories), *["contrib"] * bool(task.peer)])
    assert [run["memory"] for run in result["runs"]] == participants
    assert all(len(run["success"]) == 1 and np.isfinite(run["success"]).all() for run in result["runs"])
    assert task.goal in task.table(result)
    task.draw(result)

    # Stored runs are not repeated.
    again = task.run(1, steps=16, peer_python="python", folder=tmp_path)
    assert [run["success"] for run in again["runs"]] == [run["success"] for run in result["runs"]]
    assert len(begun) == len(participants)


@pytest.mark.parametrize("path", sorted((RESULTS / "learning").glob("memory-*.json")), ids=lambda path: path.stem)
def test_stored_summary_follows_from_the_stored_runs(path: Path) -> None:
    result = json.loads(path.read_text())
    task = MEMORY_TASKS[path.stem]
    assert_equal_json(task.summarize(result), result["summary"])
    assert task.table(result).splitlines() == result["table"]


@pytest.mark.parametrize("remembers", [True, False])
def test_masked_task_needs_a_memory(remembers: bool) -> None:
    assert envs.check(MaskedRecall, steps=50).ok
    env, returns = MaskedRecall(), []
    for seed in range(200):
        observation, info = env.reset(seed=seed)
        symbol = int(observation.argmax()) if remembers else 0
        total = 0.0
        for _ in range(DECISIONS):
            order = [(symbol + offset) % SYMBOLS for offset in range(SYMBOLS)]
            answer = next(each for each in order if info["action_mask"][each])
            _, reward, over, _, info = env.step(answer)
            total += reward
        assert over
        returns.append(total)
    assert min(returns) == 1.0 if remembers else 0.4 < np.mean(returns) < 0.75
