"""One gradient update of DQN per compiled call, and K of them."""

from __future__ import annotations

from typing import Any

import pytest

import noterl
from noterl import backends
from tests.support.parts import learner_of, sample_batch

BATCH = 64


@pytest.mark.parametrize("hidden", [(128,), (256, 256)], ids=lambda hidden: "x".join(map(str, hidden)))
@pytest.mark.parametrize("updates", [1, 32, 128])
def test_update(benchmark: Any, hidden: tuple[int, ...], updates: int, size: Any, record_median: Any) -> None:
    updates = size(updates, min(updates, 2))
    agent = noterl.DQN("CartPole-v1", double=False, hidden=hidden, seed=0)
    agent.compile(
        batch_size=BATCH, replay=noterl.Replay(10_000), learning_starts=900, update_every=1_000, updates=updates
    )
    agent.fit(steps=1_000, verbose=0)
    learner = learner_of(agent)
    batch = sample_batch(agent, updates)

    def update() -> Any:
        result = learner.update(batch, updates)
        # The framework may only queue the work; reading the loss waits for its end.
        return backends.current().fetch(result.logs["loss"])

    losses = benchmark(update)
    assert losses.shape == (updates,)
    record_median("microseconds per update", updates)
