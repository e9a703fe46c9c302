"""The means of what updates log: their cost beside the update that logs them."""

from __future__ import annotations

from typing import Any

import pytest

import noterl
from noterl.learning.metrics import MetricMeans
from tests.support.parts import learner_of, sample_batch

CALLS = 500  # calls of updates in an episode


@pytest.mark.parametrize("updates", [1, 32])
def test_metrics(benchmark: Any, updates: int, size: Any, record_median: Any) -> None:
    """Measure the means of three scalars, as SAC logs them. The goal, 1 % of the time of an update, is not checked."""
    agent = noterl.SAC("Pendulum-v1", hidden=(size(256, 8),) * 2, seed=0)
    agent.compile(replay=noterl.Replay(1_000), learning_starts=100, update_every=1_000)
    agent.fit(steps=300, verbose=0)
    calls = size(CALLS, 2)
    result = learner_of(agent).update(sample_batch(agent, updates), updates)
    means = MetricMeans()

    def episode() -> Any:
        for _ in range(calls):
            means.add(result.logs, updates)
        return means.take()

    assert {"loss", "actor_loss", "temperature"} <= benchmark(episode).keys()
    record_median("microseconds per update", calls * updates)
