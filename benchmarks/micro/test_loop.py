"""What the loop adds to a step: `fit` without updates against the bare environment, actor, policy and memory."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

import noterl
from noterl.policies import GreedyQPolicy

# Its episodes last 200 steps whatever an untrained agent does, so resets weigh little, and the same for both.
ENVIRONMENT = "MountainCar-v0"
STEPS = 5_000


def untrained() -> noterl.Agent:
    """Return an agent whose network acts from the first step on and never learns."""
    agent = noterl.DQN(ENVIRONMENT, seed=0)
    agent.compile(policy=GreedyQPolicy(), learning_starts=1, update_every=10**9, target_update=10**9)
    agent.fit(steps=STEPS, verbose=0)
    return agent


def bare(agent: noterl.Agent) -> float:
    """Return the seconds that the same steps take without a loop around them."""
    environment = gymnasium.make(ENVIRONMENT, disable_env_checker=True)
    add, actor = agent.replay.add, agent.acting
    observation, _ = environment.reset(seed=0)
    start = time.perf_counter()
    for _ in range(STEPS):
        action = int(actor(observation[None]).argmax(-1)[0])
        following, reward, terminated, truncated, _ = environment.step(action)
        add(0, observation, action, reward, following, terminated, truncated)
        observation = following
        if terminated or truncated:
            observation, _ = environment.reset()
    return time.perf_counter() - start


def test_overhead_of_a_step(benchmark: Any) -> None:
    agent = untrained()
    without = []

    def time_bare() -> None:
        # Both are timed in turn, so that a machine that slows down does not count as overhead.
        without.append(bare(agent))

    benchmark.pedantic(agent.fit, setup=time_bare, kwargs={"steps": STEPS, "verbose": 0}, rounds=15)
    overhead = (benchmark.stats.stats.min - min(without)) / STEPS * 1e6
    benchmark.extra_info["microseconds of overhead"] = overhead
    benchmark.extra_info["microseconds without the loop"] = min(without) / STEPS * 1e6
    assert overhead <= 10
