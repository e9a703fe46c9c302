"""The tasks for agents with a memory run, and the largest return of the masked one is reached by the right answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.memory_tasks import DECISIONS, MEMORY_TASKS, SYMBOLS, MaskedRecall
from noterl import envs

pytestmark = pytest.mark.backends("torch")


@pytest.mark.filterwarnings("ignore:fit ended:UserWarning")
@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_task_trains_and_is_summarized(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.memory_tasks.EPISODES", 1)
    task: Any = MEMORY_TASKS[name]
    result = task.run(1, steps=16)
    assert [run["memory"] for run in result["runs"]] == [memory or "without" for memory in task.memories]
    assert all(len(run["success"]) == 1 and np.isfinite(run["success"]).all() for run in result["runs"])
    result |= {"summary": task.summarize(result), "seeds": 1}
    assert task.goal in task.table(result)
    task.draw(result)


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
