"""Storing a transition, sampling the batches of one update or of a group, and gathering batches ahead."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import noterl

SPACES = {
    "vector": spaces.Box(-1.0, 1.0, (4,), np.float32),
    "image": spaces.Box(0, 255, (84, 84), np.uint8),
    "stack": spaces.Box(0, 255, (84, 84, 4), np.uint8),
}
LENGTH = 200


def make_memory(kind: str, capacity: int, lanes: int = 1, **keywords: Any) -> noterl.Replay:
    replay = noterl.Replay(capacity, **keywords)
    replay.build(SPACES[kind], spaces.Discrete(4))
    for transition in episode(kind, lanes) * (capacity // LENGTH + 1):
        replay.add(*transition)
    return replay


def episode(kind: str, lanes: int = 1) -> list[tuple[Any, ...]]:
    space = SPACES[kind]
    space.seed(0)
    observations = [space.sample() for _ in range(LENGTH + lanes)]
    if kind == "stack":  # each stack continues the previous one
        frames = np.concatenate(observations[:4] + [one[..., -1:] for one in observations], -1)
        observations = [frames[..., t : t + 4].copy() for t in range(LENGTH + lanes)]
    last = LENGTH - lanes
    return [(t % lanes, observations[t], 1, 1.0, observations[t + lanes], t >= last, False) for t in range(LENGTH)]


@pytest.mark.parametrize(("kind", "lanes"), [("vector", 1), ("vector", 8), ("image", 1)])
def test_add(benchmark: Any, kind: str, lanes: int, size: Any, record_median: Any) -> None:
    replay, transitions = make_memory(kind, size(10_000, 400), lanes), episode(kind, lanes)
    add = replay.add

    def add_an_episode() -> None:
        for transition in transitions:
            add(*transition)

    benchmark(add_an_episode)
    record_median("microseconds per transition", LENGTH)


@pytest.mark.parametrize("updates", [1, 32, 128])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", ["vector", "image"])
def test_sample(benchmark: Any, kind: str, n_step: int, updates: int, size: Any, record_median: Any) -> None:
    replay, generator = make_memory(kind, size(10_000, 400), n_step=n_step), np.random.default_rng(0)
    batch = benchmark(lambda: replay.gather(replay.sample(updates, 64, generator=generator), gamma=0.99))
    assert batch.reward.shape == (updates, 64)
    record_median("microseconds per batch", updates)


@pytest.mark.parametrize("updates", [1, 8])
def test_sample_stacks(benchmark: Any, updates: int, size: Any, record_median: Any) -> None:
    replay, generator = make_memory("stack", size(2_000, 400), frame_stack=4), np.random.default_rng(0)
    batch = benchmark(lambda: replay.gather(replay.sample(updates, 32, generator=generator), gamma=0.99))
    assert batch.observation.shape == (updates, 32, 84, 84, 4)
    record_median("microseconds per batch", updates)


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("where", ["elsewhere", "here"])
def test_gather_ahead(benchmark: Any, where: str, prefetch: int, size: Any, record_median: Any) -> None:
    """Eight updates of 2 ms on frame stacks: on another device (a sleep here), or on the cores that gather."""
    replay = make_memory("stack", size(2_000, 400), frame_stack=4, prefetch=prefetch)
    sample = replay.sample(8, 32, generator=np.random.default_rng(0))
    parts = [sample[k : k + 1] for k in range(8)]
    matrix = np.ones((200, 200), np.float32)

    def group() -> None:
        with replay.gather_ahead(lambda part: replay.gather(part, gamma=0.99), parts) as batches:
            for _ in parts:
                next(batches)
                until = time.perf_counter() + 0.002
                if where == "elsewhere":
                    time.sleep(0.002)
                while time.perf_counter() < until:
                    matrix @ matrix

    benchmark(group)
    record_median("milliseconds per group", unit=1e-3)
