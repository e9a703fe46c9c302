"""Storing a transition, and drawing the batches of one gradient update or of a group of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import noterl

SPACES = {
    "vector": spaces.Box(-1.0, 1.0, (4,), np.float32),
    "image": spaces.Box(0, 255, (84, 84), np.uint8),
}
LENGTH = 200


def filled(kind: str, capacity: int = 10_000) -> noterl.Replay:
    replay = noterl.Replay(capacity)
    replay.build(SPACES[kind], spaces.Discrete(4))
    for transition in episode(kind) * (capacity // LENGTH + 1):
        replay.add(*transition)
    return replay


def episode(kind: str) -> list[tuple[Any, ...]]:
    space = SPACES[kind]
    space.seed(0)
    observations = [space.sample() for _ in range(LENGTH + 1)]
    return [(0, observations[t], 1, 1.0, observations[t + 1], t == LENGTH - 1, False) for t in range(LENGTH)]


@pytest.mark.parametrize("kind", SPACES)
def test_add(benchmark: Any, kind: str) -> None:
    replay, transitions = filled(kind), episode(kind)
    add = replay.add

    def add_an_episode() -> None:
        for transition in transitions:
            add(*transition)

    benchmark(add_an_episode)
    benchmark.extra_info["microseconds each"] = benchmark.stats.stats.median / LENGTH * 1e6


@pytest.mark.parametrize("updates", [1, 32, 128])
@pytest.mark.parametrize("kind", SPACES)
def test_sample(benchmark: Any, kind: str, updates: int) -> None:
    replay, generator = filled(kind), np.random.default_rng(0)
    batch = benchmark(replay.sample, updates, 64, generator=generator, gamma=0.99)
    assert batch.reward.shape == (updates, 64)
    benchmark.extra_info["microseconds a batch"] = benchmark.stats.stats.median / updates * 1e6
