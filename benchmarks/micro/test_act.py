"""The forward pass of an action in NumPy and compiled, by network size and batch size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import noterl
from tests.support.parts import actor_of


@pytest.fixture(scope="module")
def agents() -> dict[str, noterl.Agent]:
    """Return an agent for each size of the hidden layers."""
    sizes = {"64x64": (64, 64), "256x256": (256, 256), "1024x1024": (1024, 1024)}
    return {name: noterl.DQN("CartPole-v1", hidden=hidden, seed=0) for name, hidden in sizes.items()}


def observations(rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("layers", ["64x64", "256x256", "1024x1024"])
def test_forward_in_numpy(benchmark: Any, agents: dict[str, noterl.Agent], layers: str, rows: int) -> None:
    agent, batch = agents[layers], observations(rows)
    agent.act(batch)
    forward = actor_of(agent).forward
    assert forward.in_numpy
    benchmark(forward, batch)


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("layers", ["64x64", "256x256", "1024x1024"])
def test_forward_compiled(benchmark: Any, agents: dict[str, noterl.Agent], layers: str, rows: int) -> None:
    agent, batch = agents[layers], observations(rows)
    agent.act(batch)
    forward = actor_of(agent).forward.compiled
    forward(batch)
    benchmark(forward, batch)


def test_act_on_one_observation(benchmark: Any, agents: dict[str, noterl.Agent]) -> None:
    agent, observation = agents["256x256"], observations(1)[0]
    benchmark(agent.act, observation)
