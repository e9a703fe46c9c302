"""What a save costs the training thread, with a million rows of CartPole in the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl.callbacks import Checkpoint

ROWS, LENGTH = 1_000_000, 200


@pytest.fixture(scope="module")
def agent() -> noterl.DQN:
    """Return an agent whose memory is full; its episodes have 200 steps."""
    agent = noterl.DQN("CartPole-v1", seed=1)
    agent.compile(replay=noterl.Replay(ROWS))
    agent.fit(steps=1100, verbose=0)
    observations = np.random.default_rng(0).random((ROWS + 1, 4), np.float32)
    add = agent.replay.add
    for row in range(ROWS):
        add(0, observations[row], row % 2, 1.0, observations[row + 1], row % LENGTH == LENGTH - 1, False)
    return agent


@pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])
def test_save(benchmark: Any, agent: noterl.DQN, background: bool, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, save_freq=1, max_save_files=1, save_replay=True, background=background)
    checkpoint.agent = agent
    checkpoint.on_train_begin({})
    logs = {"reward": 1.0, "complete": True}

    def next_episode() -> None:
        checkpoint._writer.drain()  # the file before is written while training goes on
        agent.episodes += 1

    benchmark.pedantic(lambda: checkpoint.on_episode_end(0, logs), setup=next_episode, rounds=20, warmup_rounds=1)
    benchmark.extra_info["stall in milliseconds"] = benchmark.stats.stats.median * 1e3
    benchmark.extra_info["longest stall in milliseconds"] = benchmark.stats.stats.max * 1e3
    checkpoint.on_train_end({})
    assert len(checkpoint.files) == 1
