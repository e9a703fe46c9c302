"""A gradient update of DQN: one a call, and K of them in one compiled call."""

from __future__ import annotations

from typing import Any

import pytest

import noterl
from noterl import backends

BATCH = 64


@pytest.mark.parametrize("hidden", [(128,), (256, 256)], ids=lambda hidden: "x".join(map(str, hidden)))
@pytest.mark.parametrize("updates", [1, 32, 128])
def test_update(benchmark: Any, hidden: tuple[int, ...], updates: int) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=hidden, seed=0)
    agent.compile(
        batch_size=BATCH, replay=noterl.Replay(10_000), learning_starts=900, update_every=1_000, updates=updates
    )
    agent.fit(steps=1_000, verbose=0)
    batch = agent.gather(agent.draw(updates))

    def update() -> Any:
        result = agent.run_updates(batch, updates)
        # A framework may only have queued the work; the loss cannot be read before it is done.
        return backends.current().fetch(result.logs["loss"])

    losses = benchmark(update)
    assert losses.shape == (updates,)
    benchmark.extra_info["microseconds an update"] = benchmark.stats.stats.median / updates * 1e6
