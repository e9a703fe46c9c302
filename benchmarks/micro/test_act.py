"""The forward pass of an action in NumPy and compiled, by network size and batch size."""

from __future__ import annotations

from statistics import median
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


@pytest.mark.parametrize(("rows", "bar"), [(1, 1.8), (64, 1.2)])
def test_forward_beside_plain_code(
    benchmark: Any, agents: dict[str, noterl.Agent], size: Any, time_pairs: Any, rows: int, bar: float
) -> None:
    agent, batch, calls = agents["64x64"], observations(rows), size(500, 2)
    agent.act(batch)
    forward = actor_of(agent).forward
    weights = forward.weights()
    is_transposed = weights[0].shape == (64, 4)  # on torch
    kernels = [kernel.T if is_transposed else kernel for kernel in weights[::2]]
    layers = list(zip(kernels, weights[1::2], strict=True))

    def plain() -> None:
        for _ in range(calls):
            x = batch[0] if rows == 1 else batch
            for kernel, bias in layers[:-1]:
                x = np.maximum(x @ kernel + bias, 0)
            kernel, bias = layers[-1]
            x @ kernel + bias

    pairs = time_pairs(lambda: [forward(batch) for _ in range(calls)], plain, rounds=30)
    if pairs:
        ratio = median(compiled / bare for compiled, bare in pairs)
        benchmark.extra_info["time of the forward pass, relative to plain NumPy code"] = ratio
        assert ratio <= bar
