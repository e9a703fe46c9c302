"""Prioritized and uniform sampling from a large memory: sampling a group's indices and feeding back its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.replay import Prioritized, Sampler, Uniform

CAPACITY = 1_000_000
BATCH_SIZE = 64


@pytest.fixture(scope="module", params=["uniform", "prioritized"])
def replay(request: Any, size: Any) -> noterl.Replay:
    capacity = size(CAPACITY, 2_000)
    sampler: Sampler = Uniform() if request.param == "uniform" else Prioritized(beta_steps=2 * capacity)
    memory = noterl.Replay(capacity, sampler=sampler)
    memory.build(spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(2))
    observation = np.zeros(4, np.float32)
    for _ in range(capacity):
        memory.add(0, observation, 1, 1.0, observation, False, False)
    generator = np.random.default_rng(0)
    for _ in range(size(200, 2)):
        feed_back(memory, memory.sample(32, 256, generator=generator), generator)
    return memory


def feed_back(memory: noterl.Replay, sample: Any, generator: np.random.Generator) -> None:
    memory.feedback(sample, {"td_error": generator.standard_normal(sample.indices.shape, np.float32)})


@pytest.mark.parametrize("updates", [1, 32])
def test_sample_indices(benchmark: Any, replay: noterl.Replay, updates: int, record_median: Any) -> None:
    benchmark(replay.sample, updates, BATCH_SIZE, generator=np.random.default_rng(0))
    record_median("microseconds per batch", updates)


@pytest.mark.parametrize("updates", [1, 32])
def test_feedback(benchmark: Any, replay: noterl.Replay, updates: int, record_median: Any) -> None:
    generator = np.random.default_rng(0)
    sample = replay.sample(updates, BATCH_SIZE, generator=generator)
    errors = {"td_error": generator.standard_normal(sample.indices.shape, np.float32)}
    benchmark(replay.feedback, sample, errors)
    record_median("microseconds per batch", updates)


@pytest.mark.parametrize("updates", [1, 32])
def test_group(benchmark: Any, replay: noterl.Replay, updates: int, record_median: Any) -> None:
    """All that a group of updates does except learning: store steps, sample batches, feed back errors."""
    generator = np.random.default_rng(0)
    observation = np.zeros(4, np.float32)
    errors = {"td_error": generator.standard_normal((updates, BATCH_SIZE), np.float32)}

    def group() -> None:
        for _ in range(updates):
            replay.add(0, observation, 1, 1.0, observation, False, False)
        sample = replay.sample(updates, BATCH_SIZE, generator=generator)
        replay.gather(sample, gamma=0.99)
        replay.feedback(sample, errors)

    benchmark(group)
    record_median("microseconds per batch", updates)
