"""Sampling 256 transitions of 15 bits with relabeled goals, and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import noterl
from noterl.envs import BitFlip
from noterl.replay import Hindsight

CAPACITY, BATCH_SIZE = 100_000, 256
MEMORIES = {
    "uniform": lambda: None,
    "future": lambda: Hindsight("future", ratio=1.0),
    "episode": lambda: Hindsight("episode", ratio=1.0),
}


@pytest.fixture(scope="module", params=MEMORIES)
def relabeling(request: Any) -> str:
    return request.param


@pytest.fixture(scope="module", params=[1, 3])
def replay(request: Any, relabeling: str, size: Any) -> noterl.Replay:
    capacity = size(CAPACITY, 1_000)
    env, generator = BitFlip(15), np.random.default_rng(0)
    memory = noterl.Replay(capacity, relabel=MEMORIES[relabeling](), n_step=request.param)
    if memory.relabel is not None:
        memory.relabel.attach(env)
    memory.build(env.observation_space, env.action_space)
    before, ended = env.reset(seed=0)[0], False
    for action in generator.integers(15, size=capacity + 1_000).tolist():
        before = env.reset()[0] if ended else before
        after, reward, terminated, truncated, _ = env.step(action)
        memory.add(0, before, action, reward, after, terminated, truncated)
        before, ended = after, terminated or truncated
    return memory


@pytest.mark.parametrize("updates", [1, 32])
def test_sample(benchmark: Any, replay: noterl.Replay, updates: int, record_median: Any) -> None:
    generator = np.random.default_rng(0)
    benchmark(lambda: replay.gather(replay.sample(updates, BATCH_SIZE, generator=generator), gamma=0.98))
    record_median("microseconds per batch", updates)
