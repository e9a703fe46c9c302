"""The time a save takes in the training thread, with a million transitions of CartPole in the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl.callbacks import Checkpoint

ROWS, LENGTH = 1_000_000, 200


@pytest.fixture(scope="module")
def agent(size: Any) -> noterl.DQN:
    """Return an agent with a full memory of episodes with 200 steps."""
    rows = size(ROWS, 2_000)
    agent = noterl.DQN("CartPole-v1", hidden=(256, 256), seed=1)
    agent.compile(replay=noterl.Replay(rows))
    agent.fit(steps=1100, verbose=0)
    observations = np.random.default_rng(0).random((rows + 1, 4), np.float32)
    add = agent.replay.add
    for row in range(rows):
        add(0, observations[row], row % 2, 1.0, observations[row + 1], row % LENGTH == LENGTH - 1, False)
    return agent


@pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])
def test_save(benchmark: Any, agent: noterl.DQN, background: bool, tmp_path: Path, record_median: Any) -> None:
    checkpoint = Checkpoint(tmp_path, save_freq=1, max_save_files=1, save_replay=True, background=background)
    checkpoint.agent = agent
    checkpoint.on_train_begin({})
    logs = {"reward": 1.0, "complete": True}

    def next_episode() -> None:
        checkpoint._writer.wait()  # the previous file is written during training
        agent._counters.episodes += 1

    benchmark.pedantic(lambda: checkpoint.on_due(logs), setup=next_episode, rounds=20, warmup_rounds=1)
    record_median("milliseconds", unit=1e-3)
    if benchmark.stats is not None:
        benchmark.extra_info["longest, milliseconds"] = benchmark.stats.stats.max * 1e3
    checkpoint.on_train_end({})
    assert len(checkpoint.files) == 1
